//! Which endpoint a connection goes to.

use super::{open, start};
use crate::agent_lab::{AgentLab, WEB, patience};
use crate::mode_change::HEADER;
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Probe, eventually};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("round_robin_takes_turns", in_turn),
    ("least_connections_fills_the_emptiest_endpoint", fewest),
    ("balancing_can_be_changed_while_running", changed),
];

fn web() -> SocketAddr {
    SocketAddr::new(WEB[0], 80)
}

/// A number of connections that stay open, with the pod that serves each.
fn several(world: &AgentLab, count: usize) -> Result<Vec<(String, Conversation)>, Failed> {
    let one = |_| {
        let mut conversation = open(world, web())?;
        let reply = conversation.ask("who?").map_err(|e| e.to_string())?;
        Ok((reply.server, conversation))
    };
    (0..count).map(one).collect()
}

fn count(open: &[(String, Conversation)], pod: &str) -> usize {
    open.iter().filter(|(server, _)| server == pod).count()
}

fn in_turn(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let open = several(world, 20)?;
    let servers: Vec<&str> = open.iter().map(|(server, _)| server.as_str()).collect();
    ensure(servers.windows(2).all(|pair| pair[0] != pair[1]), || format!("not in turn: {servers:?}"))
}

fn fewest(world: &mut AgentLab) -> Outcome {
    start(world, &["--userspace-balancing=least-connections"])?;
    world.web_works()?;
    let name = r#"portway_userspace_connections_open{namespace="default",service="web",port="",protocol="TCP",ip_family="IPv4"}"#;
    // The connections of the check above have ended.
    world.metric(name, |open| open == 0.0)?;
    let mut held = several(world, 20)?;
    ensure(count(&held, "pod1a") == 10, || format!("{} of 20 at pod1a", count(&held, "pod1a")))?;
    // The connections of one pod end; the next ones go there, until it has as many again.
    held.retain(|(server, _)| server == "pod1b");
    world.metric(name, |open| open == 10.0)?;
    let more = several(world, 10)?;
    ensure(count(&more, "pod1a") == 10, || format!("{} of 10 at pod1a", count(&more, "pod1a")))?;
    let outcome = Probe::tcp(world.client(), web()).count(20).timeout(Duration::from_secs(2)).run();
    ensure(outcome.all_answered() && outcome.servers().len() == 2, || outcome.to_string())
}

/// The relay has to learn of it, though no Service changes.
fn changed(world: &mut AgentLab) -> Outcome {
    world.write("config.yaml", &format!("{HEADER}mode: userspace\n"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    world.web_works()?;
    let mut held = several(world, 8)?;
    held.retain(|(server, _)| server == "pod1b");
    let fewest = format!("{HEADER}mode: userspace\nuserspace: {{balancing: least-connections}}\n");
    world.write("config.yaml", &fewest);
    world.logged(&["configuration applied", "userspace.balancing"])?;
    // Three more at a time leave pod1a with fewer, once the relay has seen the previous ones end.
    let all_there = || match several(world, 3) {
        Ok(more) if count(&more, "pod1a") == 3 => Ok(()),
        Ok(more) => Err(format!("{} of 3 at pod1a", count(&more, "pod1a"))),
        Err(failed) => Err(failed.message().unwrap_or_default().to_owned()),
    };
    Ok(eventually(patience(), all_there)?)
}
