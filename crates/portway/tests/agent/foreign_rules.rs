//! Rules of other programs: leftovers of kube-proxy, which are removed, and rules of any other program, which must not
//! change by a byte.

use crate::agent_lab::AgentLab;
use crate::tool::{FAMILIES, VARIANTS, Variant};
use crate::{Outcome, ensure};
use libtest_mimic::Failed;

/// The rules of kube-proxy v1.36.4 for `web` (`iptables-save`, `nft list ruleset`), without counters.
const IPTABLES: [&str; 2] =
    [include_str!("kube-proxy/iptables.rules"), include_str!("kube-proxy/ip6tables.rules")];
const TABLES: &str = include_str!("kube-proxy/tables.nft");
/// The rules and sets of its ipvs mode. There are no virtual servers, since these tests also run without ip_vs.
const IPVS: &str = include_str!("kube-proxy/ipvs.rules");
const SETS: &str = "create KUBE-CLUSTER-IP hash:ip,port\nadd KUBE-CLUSTER-IP 10.96.0.1,tcp:80\n\
    create KUBE-LOAD-BALANCER hash:ip,port\ncreate KUBE-LOOP-BACK hash:ip,port,ip\n\
    create KUBE-NODE-PORT-TCP bitmap:port range 0-65535\nadd KUBE-NODE-PORT-TCP 30001\n\
    create KUBE-IPVS-IPS hash:ip\nadd KUBE-IPVS-IPS 10.96.0.77\n\
    create KUBE-6-CLUSTER-IP hash:ip,port family inet6\n";

/// Rules of Docker, of an administrator, and of a network policy agent whose chain names begin with KUBE- too.
const FOREIGN: &str = "*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8888 -j DNAT --to-destination 172.17.0.2:80
COMMIT
*filter
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-ROUTER-INPUT - [0:0]
:MY-RULES - [0:0]
-A INPUT -m comment --comment \"kube-router netpol\" -j KUBE-ROUTER-INPUT
-A INPUT -j MY-RULES
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -j DOCKER
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER-USER -j RETURN
-A KUBE-NWPLCY-DEFAULT -j MARK --set-xmark 0x10000/0x10000
-A KUBE-ROUTER-INPUT -d 10.96.0.0/12 -m comment --comment \"allow traffic to cluster IP\" -j RETURN
-A MY-RULES -s 203.0.113.0/24 -m set --match-set KUBE-MINE src -m comment --comment \"about KUBE-SERVICES\" -j DROP
COMMIT
";
const FOREIGN_TABLE: &str = "table inet mine {
    map m { type ipv4_addr : verdict; elements = { 203.0.113.7 : drop }; }
    chain forward { type filter hook forward priority 5; policy accept; ip saddr vmap @m; }
}
table ip kube-proxy-like {
    chain services { tcp dport 80 accept; }
}
";

impl AgentLab {
    /// Creates the leftovers of kube-proxy in its iptables mode.
    pub(crate) fn kube_proxy_iptables(&self, variant: Variant) -> Outcome {
        FAMILIES.into_iter().zip(IPTABLES).try_for_each(|(family, rules)| self.load(variant, family, rules))
    }

    /// Creates the leftovers of kube-proxy in its nftables mode.
    pub(crate) fn kube_proxy_nftables(&self) -> Outcome {
        self.tool("nft", &["-f", "-"], TABLES).map(drop)
    }

    /// Creates the leftovers of kube-proxy in its ipvs mode, without virtual servers.
    pub(crate) fn kube_proxy_ipvs(&self, variant: Variant) -> Outcome {
        self.tool("ipset", &["restore"], SETS)?;
        self.load(variant, FAMILIES[0], IPVS)?;
        // Not every kernel has dummy links, which kube-proxy uses. Portway finds the link by its name.
        self.tool("ip", &["link", "add", "kube-ipvs0", "type", "bridge"], "")?;
        for address in ["10.96.0.1/32", "10.96.0.77/32", "fd96::1/128"] {
            self.tool("ip", &["address", "add", address, "dev", "kube-ipvs0"], "")?;
        }
        Ok(())
    }

    /// The sets and links of an ipvs mode, of Portway or kube-proxy, that exist.
    pub(crate) fn ipvs_leftovers(&self) -> Result<Vec<String>, Failed> {
        let sets = self.tool("ipset", &["list", "-name"], "")?;
        let links = self.tool("ip", &["-brief", "link"], "")?;
        let left = sets.lines().chain(links.lines());
        let left = left.filter(|l| l.starts_with("KUBE-") && *l != "KUBE-MINE" || l.contains("kube-ipvs0"));
        Ok(left.map(str::to_owned).collect())
    }

    /// All rules, sets and addresses of the node.
    pub(crate) fn everything(&self) -> Result<String, Failed> {
        let mut text = String::new();
        for variant in VARIANTS {
            for family in FAMILIES {
                text += &self.save(variant, family)?;
            }
        }
        text += &self.nft(&["-a", "-s", "list", "ruleset"])?;
        text += &self.tool("ipset", &["save"], "")?;
        text += &self.tool("ip", &["address"], "")?;
        Ok(text)
    }
}

/// The rules and sets of other programs, as they were when they were created.
pub(crate) struct Foreign {
    variant: Variant,
    rules: Vec<String>,
    tables: Vec<String>,
    set: String,
}

impl Foreign {
    /// Creates them, and records all rules that now exist, those of the kubelet included.
    pub(crate) fn create(lab: &AgentLab, variant: Variant) -> Result<Foreign, Failed> {
        lab.tool("ipset", &["restore"], "create KUBE-MINE hash:net\nadd KUBE-MINE 203.0.113.0/25\n")?;
        lab.load(variant, FAMILIES[0], FOREIGN)?;
        lab.tool("nft", &["-f", "-"], FOREIGN_TABLE)?;
        let rules = FAMILIES.into_iter().map(|family| lab.save(variant, family)).collect::<Result<_, _>>()?;
        Ok(Foreign { variant, rules, tables: tables(lab)?, set: set(lab)? })
    }

    /// Checks that they exist in the same order; there may be other rules between them.
    pub(crate) fn is_unchanged(&self, lab: &AgentLab, when: &str) -> Outcome {
        for (family, before) in FAMILIES.into_iter().zip(&self.rules) {
            let now = lab.save(self.variant, family)?;
            for (table, before) in by_table(before) {
                let now =
                    by_table(&now).into_iter().find(|(t, _)| *t == table).map_or(vec![], |(_, lines)| lines);
                let mut rest = now.iter();
                let lost = before.iter().find(|line| !rest.any(|l| l == *line));
                ensure(lost.is_none(), || {
                    format!("{when}, {family} {table}: removed or moved: {lost:?}\n{}", now.join("\n"))
                })?;
            }
        }
        let now = tables(lab)?;
        ensure(now == self.tables, || format!("{when}: it was {:?} and is {now:?}", self.tables))?;
        let now = set(lab)?;
        ensure(now == self.set, || format!("{when}: it was {} and is {now}", self.set))
    }

    /// Checks that they are unchanged, and that the tables of iptables have no other rules.
    pub(crate) fn is_the_only_content(&self, lab: &AgentLab, when: &str) -> Outcome {
        self.is_unchanged(lab, when)?;
        for (family, before) in FAMILIES.into_iter().zip(&self.rules) {
            let now = lab.save(self.variant, family)?;
            ensure(by_table(&now) == by_table(before), || {
                format!("{when}, {family}: it was\n{before}\nand is\n{now}")
            })?;
        }
        Ok(())
    }
}

/// The lines of `iptables-save` by table, since the order of the tables varies.
fn by_table(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut tables: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix('*'), tables.last_mut()) {
            (Some(name), _) => tables.push((name, Vec::new())),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    tables.sort_unstable();
    tables
}

/// The foreign tables, with handles: a table that was removed and created again would have other handles.
fn tables(lab: &AgentLab) -> Result<Vec<String>, Failed> {
    [["inet", "mine"], ["ip", "kube-proxy-like"]]
        .iter()
        .map(|[family, name]| lab.nft(&["-a", "list", "table", family, name]))
        .collect()
}

fn set(lab: &AgentLab) -> Result<String, Failed> {
    lab.tool("ipset", &["save", "KUBE-MINE"], "")
}
