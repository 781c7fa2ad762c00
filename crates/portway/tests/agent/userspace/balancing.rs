//! The choice of the endpoint of a connection.

use super::{open, start};
use crate::agent_lab::{AgentLab, WEB, wait_timeout};
use crate::mode_change::HEADER;
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Probe, eventually};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("round_robin_takes_turns", round_robin),
    ("least_connections_selects_the_endpoint_with_the_fewest", least_connections),
    ("balancing_can_be_changed_while_running", changed),
];

fn web() -> SocketAddr {
    SocketAddr::new(WEB[0], 80)
}

/// Opens a number of connections; returns the pod of each with the open connection.
fn several(lab: &AgentLab, count: usize) -> Result<Vec<(String, Conversation)>, Failed> {
    let one = |_| {
        let mut conversation = open(lab, web())?;
        let reply = conversation.ask("who?").map_err(|e| e.to_string())?;
        Ok((reply.server, conversation))
    };
    (0..count).map(one).collect()
}

fn count(open: &[(String, Conversation)], pod: &str) -> usize {
    open.iter().filter(|(server, _)| server == pod).count()
}

fn round_robin(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    let open = several(lab, 20)?;
    let servers: Vec<&str> = open.iter().map(|(server, _)| server.as_str()).collect();
    ensure(servers.windows(2).all(|pair| pair[0] != pair[1]), || format!("not in turn: {servers:?}"))
}

fn least_connections(lab: &mut AgentLab) -> Outcome {
    start(lab, &["--userspace-balancing=least-connections"])?;
    lab.web_works()?;
    let name = r#"portway_userspace_connections_open{namespace="default",service="web",port="",protocol="TCP",ip_family="IPv4"}"#;
    // The connections of the check above have ended.
    lab.metric(name, |open| open == 0.0)?;
    let mut held = several(lab, 20)?;
    ensure(count(&held, "pod1a") == 10, || format!("{} of 20 at pod1a", count(&held, "pod1a")))?;
    // The connections to one pod end; new connections go to that pod until both have the same number.
    held.retain(|(server, _)| server == "pod1b");
    lab.metric(name, |open| open == 10.0)?;
    let more = several(lab, 10)?;
    ensure(count(&more, "pod1a") == 10, || format!("{} of 10 at pod1a", count(&more, "pod1a")))?;
    let outcome = Probe::tcp(lab.client(), web()).count(20).timeout(Duration::from_secs(2)).run();
    ensure(outcome.all_answered() && outcome.servers().len() == 2, || outcome.to_string())
}

/// The agent has to send the setting to the relay, though no Service changes.
fn changed(lab: &mut AgentLab) -> Outcome {
    lab.write("config.yaml", &format!("{HEADER}mode: userspace\n"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    lab.web_works()?;
    let mut held = several(lab, 8)?;
    held.retain(|(server, _)| server == "pod1b");
    let config = format!("{HEADER}mode: userspace\nuserspace: {{balancing: least-connections}}\n");
    lab.write("config.yaml", &config);
    lab.logged(&["configuration applied", "userspace.balancing"])?;
    // With three more connections pod1a still has the fewest, once the relay has seen the previous three end.
    let all_there = || match several(lab, 3) {
        Ok(more) if count(&more, "pod1a") == 3 => Ok(()),
        Ok(more) => Err(format!("{} of 3 at pod1a", count(&more, "pod1a"))),
        Err(failed) => Err(failed.message().unwrap_or_default().to_owned()),
    };
    Ok(eventually(wait_timeout(), all_there)?)
}
