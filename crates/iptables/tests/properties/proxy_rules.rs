//! Splits the rules in the tables of the fake kernel into those of a service proxy (Portway or kube-proxy) and foreign
//! ones, which belong to other programs.

use portway_model::Family;
use portway_testkit::cluster::address;
use portway_xtables::chains::Table;
use portway_xtables::fake::{Fake, Tables};
use portway_xtables::is_proxy_chain;
use portway_xtables::rules::Rule;
use std::collections::BTreeMap;

/// Proxy chains with their rules, and the proxy's rules in other chains. Two kernels with the same behaviour compare
/// equal: rules have a canonical spelling, and the rules of Services in shared chains are sorted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyRules(BTreeMap<(Table, String), Vec<String>>);

/// The kubelet has rules in this chain, too.
pub(crate) const FIREWALL: &str = "KUBE-FIREWALL";
/// The comments of Portway's rules in it.
const IN_FIREWALL: [&str; 2] = ["block incoming localnet connections", "route_localnet was off before"];

/// The rules and chains of the proxy.
pub(crate) fn proxy_rules(tables: &Tables) -> ProxyRules {
    let mut all = BTreeMap::new();
    for (table, chain, rules) in tables.chains() {
        let mut rules: Vec<String> = rules.iter().map(|rule| canonical(rule)).collect();
        if chain == FIREWALL {
            rules.retain(|rule| IN_FIREWALL.iter().any(|comment| rule.contains(comment)));
        } else if !is_any_proxy_chain(chain) {
            rules.retain(|rule| is_hook(rule));
        } else {
            rules
                .chunk_by_mut(|a, b| is_service_rule(chain, a) && is_service_rule(chain, b))
                .for_each(<[_]>::sort);
        }
        if chain == FIREWALL || !is_any_proxy_chain(chain) {
            rules.sort();
            rules.dedup();
        }
        if is_any_proxy_chain(chain) || !rules.is_empty() {
            all.insert((table, chain.to_owned()), rules);
        }
    }
    ProxyRules(all)
}

impl ProxyRules {
    /// One line for each chain and rule: its table, then as in `iptables-save`.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let of_chain = |((table, chain), rules): (&(Table, String), &Vec<String>)| {
            let declaration = is_any_proxy_chain(chain).then(|| format!("{table} :{chain}"));
            let rules = rules.iter().map(|rule| format!("{table} -A {chain}{rule}"));
            declaration.into_iter().chain(rules).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_chain)
    }

    /// The number of rules in a table.
    pub(crate) fn rules(&self, table: Table) -> usize {
        self.0.iter().filter(|((t, _), _)| *t == table).map(|(_, rules)| rules.len()).sum()
    }
}

/// Foreign chains and rules, one line for each: its table, then as in `iptables-save`.
pub(crate) fn foreign(tables: &Tables) -> Vec<String> {
    let mut lines = Vec::new();
    for (table, chain, rules) in tables.chains().filter(|(_, chain, _)| !is_any_proxy_chain(chain)) {
        if !BUILTIN.contains(&chain) {
            lines.push(format!("{table} :{chain}"));
        }
        let foreign = rules.iter().filter(|rule| !is_hook(rule));
        lines.extend(foreign.map(|rule| format!("{table} -A {chain}{rule}")));
    }
    lines
}

const BUILTIN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Whether a rule in a shared chain belongs to a Service. Such rules have no fixed order.
fn is_service_rule(chain: &str, rule: &str) -> bool {
    let shared = [
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        "KUBE-CLUSTER-IPS",
    ];
    shared.contains(&chain) && rule.contains("\"default/")
}

/// Whether a chain belongs to the proxy, or to an older version of kube-proxy.
pub(crate) fn is_any_proxy_chain(chain: &str) -> bool {
    is_proxy_chain(chain) || chain.starts_with("KUBE-XLB-") || chain == "KUBE-LOAD-BALANCER"
}

/// Whether a rule jumps to a chain of the proxy.
pub(crate) fn is_hook(rule: &str) -> bool {
    rule.rsplit_once("-j ")
        .is_some_and(|(_, to)| is_any_proxy_chain(to.split(' ').next().unwrap_or_default()))
}

pub(crate) fn canonical(rule: &str) -> String {
    Rule::parse(rule).map_or_else(|| rule.to_owned(), |rule| rule.to_string())
}

/// Adds foreign rules, in foreign chains and in built-in ones.
pub(crate) fn add_foreign_rules(kernel: &mut Fake, family: Family) {
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
-A INPUT -m limit --limit 5/sec -j LOG --log-prefix \"new input \"
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -m comment --comment \"not Kubernetes' chain\" -j RETURN
COMMIT
"
        ))
        .unwrap();
}
