//! The ipvs mode, checked with `ipvsadm`, `ipset`, `ip` and `ping`.

mod addresses;
mod affinity;
mod clock;
mod conntrack;
mod documented_rules;
mod drain;
mod drift;
mod foreign;
mod kernel;
mod mode_change;
mod order;
mod ping;
mod scheduler;
mod sysctls;
mod takeover;

use crate::agent_lab::{AgentLab, wait_timeout};
use crate::tool::{FAMILIES, Legacy};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::collections::{BTreeMap, BTreeSet};

/// The tests by subject.
pub(crate) const SECTIONS: &[(&str, &[Test])] = &[
    ("documented_rules", documented_rules::TESTS),
    ("ping", ping::TESTS),
    ("drain", drain::TESTS),
    ("drain_when_killed", drain::KILLED),
    ("drain_local_shortcut", drain::SHORTCUT),
    ("mode_change", mode_change::TESTS),
    ("restart", mode_change::RESTART),
    ("mode_end", mode_change::MODE_END),
    ("scheduler", scheduler::TESTS),
    ("order", order::TESTS),
    ("foreign", foreign::TESTS),
    ("foreign_marks", foreign::MARKS),
    ("excluded", foreign::EXCLUDED),
    ("drift_of_servers", drift::SERVERS),
    ("drift_of_addresses", drift::ADDRESSES),
    ("drift_of_sets", drift::SETS),
    ("drift_of_rules", drift::RULES),
    ("sysctls", sysctls::TESTS),
    ("addresses", addresses::TESTS),
    ("takeover", takeover::TESTS),
    ("takeover_to_iptables", takeover::TO_IPTABLES),
    ("affinity", affinity::TESTS),
    ("modules", kernel::MODULES),
    ("conntrack", conntrack::TESTS),
    ("clock", clock::TESTS),
];

/// Tests that need a kernel without ip_vs.
pub(crate) const WITHOUT_IP_VS: &[Test] = kernel::TESTS;

/// Virtual servers as `ipvsadm -Ln` prints them (`TCP 10.96.0.1:443 rr`), and the real servers of each
/// (`192.168.49.2:8443 Masq 1`), without the numbers of connections.
type Servers = BTreeMap<String, BTreeSet<String>>;

/// Starts the mode on a node whose kubelet uses the legacy variant of iptables: user-mode Linux has no other.
fn start(lab: &mut AgentLab, flags: &[&str]) -> Outcome {
    lab.kubelet(Legacy)?;
    start_again(lab, flags)
}

/// Starts the mode; the rules of the kubelet exist already.
fn start_again(lab: &mut AgentLab, flags: &[&str]) -> Outcome {
    lab.start(&[&["--proxy-mode=ipvs"], flags].concat()).map(drop)
}

/// The message of a failure.
fn message(failed: Failed) -> String {
    failed.message().unwrap_or_default().to_owned()
}

/// Waits until a listed value meets a condition; the error has the last value.
fn wait_until<T>(list: impl Fn() -> Result<T, Failed>, condition: impl Fn(&T) -> bool) -> Result<T, Failed>
where
    T: std::fmt::Debug,
{
    let attempt = || {
        let found = list().map_err(message)?;
        if condition(&found) { Ok(found) } else { Err(format!("{found:#?}")) }
    };
    Ok(eventually(wait_timeout(), attempt)?)
}

impl AgentLab {
    /// Runs `ipvsadm` on the node, and returns its output.
    fn ipvsadm(&self, arguments: &str) -> Result<String, Failed> {
        self.on_node(&format!("ipvsadm {arguments}"))
    }

    /// Runs a program on the node, and returns its output.
    fn on_node(&self, command: &str) -> Result<String, Failed> {
        let words: Vec<&str> = command.split(' ').collect();
        let (program, arguments) = words.split_first().ok_or("no program")?;
        self.tool(program, arguments, "")
    }

    /// All virtual servers.
    fn servers(&self) -> Result<Servers, Failed> {
        let text = self.ipvsadm("-Ln")?;
        let mut servers = Servers::new();
        let mut last = None;
        // The first three lines are headings.
        for line in text.lines().skip(3) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.split_first() {
                Some((&"->", real)) => {
                    let real = real[..3.min(real.len())].join(" ");
                    let last: Option<&mut BTreeSet<String>> = last.as_mut().and_then(|l| servers.get_mut(l));
                    last.ok_or_else(|| format!("a real server without a virtual server:\n{text}"))?
                        .insert(real);
                }
                Some(_) => {
                    servers.insert(words.join(" "), BTreeSet::new());
                    last = Some(words.join(" "));
                }
                None => {}
            }
        }
        Ok(servers)
    }

    /// The real servers of a virtual server such as `TCP 10.96.0.1:80`; none if there is no such virtual server.
    fn real_servers(&self, server: &str) -> Result<BTreeSet<String>, Failed> {
        let mut all = self.servers()?.into_iter();
        let named = |name: &str| name.strip_prefix(server).is_some_and(|rest| rest.starts_with(' '));
        Ok(all.find(|(name, _)| named(name)).map(|(_, real)| real).unwrap_or_default())
    }

    /// Waits until a virtual server has exactly these real servers: `10.244.1.10:8080 Masq 1`.
    fn has_real_servers(&self, server: &str, real: &[&str]) -> Outcome {
        let wanted: BTreeSet<String> = real.iter().map(|r| (*r).to_owned()).collect();
        wait_until(|| self.real_servers(server), |found| *found == wanted).map(drop)
    }

    /// The members of a set.
    fn members(&self, set: &str) -> Result<BTreeSet<String>, Failed> {
        let saved = self.tool("ipset", &["save", set], "")?;
        let prefix = format!("add {set} ");
        Ok(saved.lines().filter_map(|l| l.strip_prefix(&prefix)).map(str::to_owned).collect())
    }

    /// The addresses on the device kube-ipvs0, without the link-local address.
    fn bound(&self) -> Result<BTreeSet<String>, Failed> {
        let text = self.on_node("ip -o address show kube-ipvs0")?;
        let address = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        Ok(text.lines().filter_map(address).filter(|a| !a.starts_with("fe80:")).collect())
    }

    /// The rules of both families.
    fn rules(&self) -> Result<String, Failed> {
        FAMILIES.iter().map(|family| self.save(Legacy, family)).collect()
    }

    /// Waits until no ipvs object is left, neither of Portway nor of kube-proxy.
    fn without_ipvs(&self, timeout: std::time::Duration) -> Outcome {
        let attempt = || {
            let mut left = self.ipvs_leftovers().map_err(message)?;
            left.extend(self.servers().map_err(message)?.into_keys());
            let rules = self.rules().map_err(message)?;
            let of_ipvs = |l: &&str| l.contains("--match-set KUBE-") || l.contains("KUBE-IPVS");
            left.extend(rules.lines().filter(of_ipvs).map(str::to_owned));
            if left.is_empty() {
                return Ok(());
            }
            let connections = self.ipvsadm("-Lnc").map_err(message)?;
            // Without the hundreds of connections that have ended.
            let open: Vec<&str> = connections.lines().filter(|l| !l.contains("TIME_WAIT")).collect();
            Err(format!("{}\n{}", left.join("\n"), open.join("\n")))
        };
        Ok(eventually(timeout, attempt)?)
    }

    /// Checks that a mode is in force.
    fn is_in_mode(&self, mode: &str) -> Outcome {
        let page = self.status("/proxyMode")?;
        ensure(page.body == mode, || format!("/proxyMode is {}", page.body))
    }
}
