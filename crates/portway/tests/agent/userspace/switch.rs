//! Changes from and to other modes under load, and the userspace mode on a kernel without nf_tables.

use super::{ANSWER_TIMEOUT, has_ended, host_network, is_running, relay, start};
use crate::agent_lab::{AgentLab, WEB, wait_timeout};
use crate::mode_change::{HEADER, follows_changes, only_mode_in_force};
use crate::tool::{Legacy, Nft};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure};
use portway_lab::{Conversation, Protocol, eventually};
use std::net::SocketAddr;

pub(super) const TESTS: &[Test] =
    &[("while_running_and_back", while_running), ("by_restart_and_back", by_restart)];
pub(super) const WITH_IPTABLES: &[Test] = &[
    ("iptables_rules_redirect_to_the_relay", with_iptables),
    ("restarts_with_iptables", restarts_with_iptables),
    ("an_endpoint_may_have_the_address_of_a_frontend", host_network::same_port),
];

/// The modes to change to, in order.
const MODES: [&str; 4] = ["iptables", "userspace", "nftables", "userspace"];

fn while_running(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Nft)?;
    lab.write("config.yaml", &format!("{HEADER}mode: userspace\n"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    let mut traffic = Traffic::begin(lab)?;
    let first = relay(lab)?;
    for mode in MODES {
        lab.write("config.yaml", &format!("{HEADER}mode: {mode}\n"));
        lab.logged(&["the mode was switched", &format!("to=\"{mode}\"")])?;
        only_mode_in_force(lab, mode, Nft)?;
        traffic.is_alive(mode)?;
        follows_changes(lab)?;
    }
    // The first relay still has the connections that were open when the mode changed.
    is_running(first)?;
    traffic.end()?;
    has_ended(first)
}

fn by_restart(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Nft)?;
    start(lab, &[])?;
    let mut traffic = Traffic::begin(lab)?;
    for mode in MODES {
        // The agent is stopped before one change and killed before the next.
        if mode == "userspace" {
            lab.kill()?;
        } else {
            drop(lab.stop()?);
        }
        lab.start(&[&format!("--proxy-mode={mode}")])?;
        only_mode_in_force(lab, mode, Nft)?;
        traffic.is_alive(mode)?;
        follows_changes(lab)?;
    }
    traffic.end()
}

fn with_iptables(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    start(lab, &[])?;
    lab.logged(&["connections are redirected to the relay by iptables"])?;
    let traffic = Traffic::begin(lab)?;
    follows_changes(lab)?;
    let rules = lab.iptables(Legacy, &["-t", "nat", "-S"])?;
    let pod = lab.pod_ips("pod1a")[0].to_string();
    ensure(rules.contains("-j KUBE-SVC-") && !rules.contains(&pod), || {
        format!("the rules point to pods:\n{rules}")
    })?;
    traffic.end()
}

fn restarts_with_iptables(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    start(lab, &[])?;
    lab.web_works()?;
    let pid = relay(lab)?;
    let mut open = Vec::new();
    for ip in WEB {
        let to = SocketAddr::new(ip, 80);
        open.push(
            Conversation::begin(lab.client(), Protocol::Tcp, to, 3 * ANSWER_TIMEOUT)
                .map_err(|e| e.to_string())?,
        );
    }
    lab.kill()?;
    start(lab, &[])?;
    lab.web_works()?;
    lab.stop()?;
    lab.web_works()?;
    for conversation in &mut open {
        let answer = conversation.ask("still there?");
        ensure(answer.is_ok(), || format!("{answer:?}"))?;
    }
    drop(open);
    has_ended(pid)?;
    // The rules that exempt the relay's own connections are removed.
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    let portals = |lab: &AgentLab, expected: &[&str]| -> Outcome {
        let attempt = || {
            let rules = lab.iptables(Legacy, &["-t", "nat", "-S", "OUTPUT"]).map_err(|e| format!("{e:?}"))?;
            let found: Vec<&str> = rules.lines().filter(|line| line.contains("KUBE-SERVICES")).collect();
            if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
        };
        Ok(eventually(wait_timeout(), attempt)?)
    };
    portals(lab, &[r#"-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES"#])?;
    lab.stop()?;
    start(lab, &[])?;
    lab.web_works()?;
    lab.stop()?;
    lab.portway(&["cleanup"])?;
    portals(lab, &[])
}
