//! From and to the other modes, under load; and on a kernel that has no nf_tables.

use super::{ANSWER, carrier, host, is_gone, is_there, start};
use crate::switch::{HEADER, follows_changes, only};
use crate::tool::{Legacy, Nft};
use crate::traffic::Traffic;
use crate::world::{WEB, World, patience};
use crate::{Outcome, Test, ensure};
use portway_lab::{Conversation, Protocol, eventually};
use std::net::SocketAddr;

pub(super) const TESTS: &[Test] =
    &[("while_running_and_back", while_running), ("by_restart_and_back", by_restart)];
pub(super) const WITH_IPTABLES: &[Test] = &[
    ("rules_of_iptables_lead_here", with_iptables),
    ("restarts_with_iptables", restarts_with_iptables),
    ("an_endpoint_may_be_a_frontend_too", host::same_port),
];

/// The modes that one goes over to, in turn.
const MODES: [&str; 4] = ["iptables", "userspace", "nftables", "userspace"];

fn while_running(world: &mut World) -> Outcome {
    world.kubelet(Nft)?;
    world.write("config.yaml", &format!("{HEADER}mode: userspace\n"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    let mut traffic = Traffic::begin(world)?;
    let first = carrier(world)?;
    for mode in MODES {
        world.write("config.yaml", &format!("{HEADER}mode: {mode}\n"));
        world.logged(&["the mode was switched", &format!("to=\"{mode}\"")])?;
        only(world, mode, Nft)?;
        traffic.is_alive(mode)?;
        follows_changes(world)?;
    }
    // The first one still has what was open when it was left.
    is_there(first)?;
    traffic.end()?;
    is_gone(first)
}

fn by_restart(world: &mut World) -> Outcome {
    world.kubelet(Nft)?;
    start(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    for mode in MODES {
        // Once by asking, once by force.
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

fn with_iptables(world: &mut World) -> Outcome {
    world.kubelet(Legacy)?;
    start(world, &[])?;
    world.logged(&["connections are led here by iptables"])?;
    let traffic = Traffic::begin(world)?;
    follows_changes(world)?;
    let rules = world.iptables(Legacy, &["-t", "nat", "-S"])?;
    let pod = world.pod_ips("pod1a")[0].to_string();
    ensure(rules.contains("-j KUBE-SVC-") && !rules.contains(&pod), || {
        format!("the rules lead to pods:\n{rules}")
    })?;
    traffic.end()
}

fn restarts_with_iptables(world: &mut World) -> Outcome {
    world.kubelet(Legacy)?;
    start(world, &[])?;
    world.web_works()?;
    let number = carrier(world)?;
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
    is_gone(number)?;
    // Of the rules that leave the carrier's own connections alone nothing stays.
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    let portals = |world: &World, expected: &[&str]| -> Outcome {
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
