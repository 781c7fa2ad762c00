//! Switches from and to other modes under load, and the mode on a kernel without nf_tables.

use super::{ANSWER, has_ended, host_network, is_running, relay, start};
use crate::agent_lab::{AgentLab, WEB, patience};
use crate::mode_change::{HEADER, follows_changes, only};
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

/// The modes that are switched to, in turn.
const MODES: [&str; 4] = ["iptables", "userspace", "nftables", "userspace"];

fn while_running(world: &mut AgentLab) -> Outcome {
    world.kubelet(Nft)?;
    world.write("config.yaml", &format!("{HEADER}mode: userspace\n"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    let mut traffic = Traffic::begin(world)?;
    let first = relay(world)?;
    for mode in MODES {
        world.write("config.yaml", &format!("{HEADER}mode: {mode}\n"));
        world.logged(&["the mode was switched", &format!("to=\"{mode}\"")])?;
        only(world, mode, Nft)?;
        traffic.is_alive(mode)?;
        follows_changes(world)?;
    }
    // The first relay still has the connections that were open when its mode was left.
    is_running(first)?;
    traffic.end()?;
    has_ended(first)
}

fn by_restart(world: &mut AgentLab) -> Outcome {
    world.kubelet(Nft)?;
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    for mode in MODES {
        // Stopped before one switch, killed before the next.
        if mode == "userspace" {
            world.kill()?;
        } else {
            drop(world.stop()?);
        }
        world.start(&[&format!("--proxy-mode={mode}")])?;
        only(world, mode, Nft)?;
        traffic.is_alive(mode)?;
        follows_changes(world)?;
    }
    traffic.end()
}

fn with_iptables(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    start(world, &[])?;
    world.logged(&["connections are redirected to the relay by iptables"])?;
    let traffic = Traffic::begin(world)?;
    follows_changes(world)?;
    let rules = world.iptables(Legacy, &["-t", "nat", "-S"])?;
    let pod = world.pod_ips("pod1a")[0].to_string();
    ensure(rules.contains("-j KUBE-SVC-") && !rules.contains(&pod), || {
        format!("the rules point to pods:\n{rules}")
    })?;
    traffic.end()
}

fn restarts_with_iptables(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    start(world, &[])?;
    world.web_works()?;
    let number = relay(world)?;
    let mut open = Vec::new();
    for ip in WEB {
        let to = SocketAddr::new(ip, 80);
        open.push(
            Conversation::begin(world.client(), Protocol::Tcp, to, 3 * ANSWER).map_err(|e| e.to_string())?,
        );
    }
    world.kill()?;
    start(world, &[])?;
    world.web_works()?;
    world.stop()?;
    world.web_works()?;
    for conversation in &mut open {
        let answer = conversation.ask("still there?");
        ensure(answer.is_ok(), || format!("{answer:?}"))?;
    }
    drop(open);
    has_ended(number)?;
    // The rules that exempt the relay's own connections are removed.
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    let portals = |world: &AgentLab, expected: &[&str]| -> Outcome {
        let attempt = || {
            let rules =
                world.iptables(Legacy, &["-t", "nat", "-S", "OUTPUT"]).map_err(|e| format!("{e:?}"))?;
            let found: Vec<&str> = rules.lines().filter(|line| line.contains("KUBE-SERVICES")).collect();
            if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
        };
        Ok(eventually(patience(), attempt)?)
    };
    portals(world, &[r#"-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES"#])?;
    world.stop()?;
    start(world, &[])?;
    world.web_works()?;
    world.stop()?;
    world.portway(&["cleanup"])?;
    portals(world, &[])
}
