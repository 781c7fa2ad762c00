//! Our rules in the tables of a kernel, and those of other programs.

use portway_model::Family;
use portway_testkit::cluster::address;
use portway_xtables::chains::Table;
use portway_xtables::fake::{Fake, Tables};
use portway_xtables::is_proxy_chain;
use portway_xtables::rules::Rule;
use std::collections::BTreeMap;

/// Chains of ours with their rules, and our rules elsewhere, without what may differ between kernels that were
/// programmed alike: how a rule is spelled, and in which order Services' rules are in chains that all share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ours(BTreeMap<(Table, String), Vec<String>>);

/// A chain that the kubelet has a part in.
pub(crate) const FIREWALL: &str = "KUBE-FIREWALL";
/// What our rules in it say.
const IN_FIREWALL: [&str; 2] = ["block incoming localnet connections", "route_localnet was off before"];

/// Our rules and chains.
pub(crate) fn ours(tables: &Tables) -> Ours {
    let mut all = BTreeMap::new();
    for (table, chain, rules) in tables.chains() {
        let mut rules: Vec<String> = rules.iter().map(|rule| canonical(rule)).collect();
        if chain == FIREWALL {
            rules.retain(|rule| IN_FIREWALL.iter().any(|words| rule.contains(words)));
        } else if !is_proxys(chain) {
            rules.retain(|rule| is_hook(rule));
        } else {
            rules.chunk_by_mut(|a, b| is_services(chain, a) && is_services(chain, b)).for_each(<[_]>::sort);
        }
        if chain == FIREWALL || !is_proxys(chain) {
            rules.sort();
            rules.dedup();
        }
        if is_proxys(chain) || !rules.is_empty() {
            all.insert((table, chain.to_owned()), rules);
        }
    }
    Ours(all)
}

impl Ours {
    /// As `iptables-save` prints it.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let of_chain = |((table, chain), rules): (&(Table, String), &Vec<String>)| {
            let own = is_proxys(chain).then(|| format!("{table} :{chain}"));
            let rules = rules.iter().map(|rule| format!("{table} -A {chain}{rule}"));
            own.into_iter().chain(rules).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_chain)
    }

    /// How many rules that is in a table.
    pub(crate) fn rules(&self, table: Table) -> usize {
        self.0.iter().filter(|((t, _), _)| *t == table).map(|(_, rules)| rules.len()).sum()
    }
}

/// Everything else, as `iptables-save` prints it.
pub(crate) fn foreign(tables: &Tables) -> Vec<String> {
    let mut lines = Vec::new();
    for (table, chain, rules) in tables.chains().filter(|(_, chain, _)| !is_proxys(chain)) {
        if !BUILTIN.contains(&chain) {
            lines.push(format!("{table} :{chain}"));
        }
        let theirs = rules.iter().filter(|rule| !is_hook(rule));
        lines.extend(theirs.map(|rule| format!("{table} -A {chain}{rule}")));
    }
    lines
}

const BUILTIN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// A Service's rule in a chain that all share: these come in any order.
fn is_services(chain: &str, rule: &str) -> bool {
    let shared = [
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        "KUBE-CLUSTER-IPS",
    ];
    shared.contains(&chain) && rule.contains("\"default/")
}

/// Whether a chain is one of ours, or of an old version.
pub(crate) fn is_proxys(chain: &str) -> bool {
    is_proxy_chain(chain) || chain.starts_with("KUBE-XLB-") || chain == "KUBE-LOAD-BALANCER"
}

/// Whether a rule jumps to one of our chains.
pub(crate) fn is_hook(rule: &str) -> bool {
    rule.rsplit_once("-j ").is_some_and(|(_, to)| is_proxys(to.split(' ').next().unwrap_or_default()))
}

pub(crate) fn canonical(rule: &str) -> String {
    Rule::parse(rule).map_or_else(|| rule.to_owned(), |rule| rule.to_string())
}

/// Adds rules of other programs, in their own chains and in shared ones.
pub(crate) fn settle_others(kernel: &mut Fake, family: Family) {
    let pod = address(family, "a");
    kernel
        .run(&format!(
            "*nat
:DOCKER - [0:0]
:cali-OUTPUT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -j cali-OUTPUT
-A POSTROUTING -s {pod} ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
-A INPUT -m limit --limit 5/sec -j LOG --log-prefix \"who is \"
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -m comment --comment \"Kubernetes' friend\" -j RETURN
COMMIT
"
        ))
        .unwrap();
}
