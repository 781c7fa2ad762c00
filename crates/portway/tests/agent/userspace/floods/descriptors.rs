//! More connections than the relay has file descriptors for.

use super::{ANSWER_TIMEOUT, RelayBaseline, served};
use crate::agent_lab::{AgentLab, PORTWAY, WEB, wait_timeout};
use crate::{Outcome, ensure};
use portway_lab::{Conversation, Failure, Probe, Protocol, eventually};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

/// The descriptor limit of the agent, which the relay inherits.
const DESCRIPTOR_LIMIT: u32 = 256;
/// The connections that this limit allows, with two descriptors each: 64 are reserved, and 3 are used for pipes only.
const MAX_CONNECTIONS: usize = 94;

pub(super) fn without_descriptors(lab: &mut AgentLab) -> Outcome {
    // Without CAP_SYS_RESOURCE, root cannot raise the limit.
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-sys_resource",
        "prlimit",
        &format!("--nofile={DESCRIPTOR_LIMIT}:{DESCRIPTOR_LIMIT}"),
    ]);
    command.args([PORTWAY, "proxy", "--proxy-mode=userspace"]).args(lab.flags());
    lab.start_as(command)?;
    let baseline = RelayBaseline::measure(lab)?;
    let began = Instant::now();
    let to = SocketAddr::new(WEB[0], 80);
    let begin = |lab: &AgentLab| Conversation::begin(lab.client(), Protocol::Tcp, to, ANSWER_TIMEOUT);
    // A connection that has just ended counts until its descriptors are closed, so a first refusal may be too early.
    let mut open = Vec::new();
    eventually(wait_timeout(), || -> Result<(), String> {
        while open.len() < MAX_CONNECTIONS {
            let count = open.len();
            open.push(begin(lab).map_err(|failure| format!("{count} connections are open, then {failure}"))?);
        }
        Ok(())
    })?;
    match begin(lab) {
        Err(Failure::Reset | Failure::Refused) => {}
        Err(failure) => return Err(format!("the connection beyond the limit: {failure}").into()),
        Ok(_) => return Err(format!("more than {MAX_CONNECTIONS} connections are open").into()),
    }
    let outcome = Probe::tcp(lab.client(), to).count(200).timeout(ANSWER_TIMEOUT).run();
    ensure(outcome.answered() == 0 && outcome.timed_out == 0, || {
        format!("connections beyond the limit: {outcome}")
    })?;
    are_alive(&mut open)?;
    let text = "new connections are refused";
    lab.logged(&["WARN", text, "raise LimitNOFILE="])?;
    let (logged, most) = (lab.agent()?.log().count(text), 1 + began.elapsed().as_secs() / 10);
    ensure(logged as u64 <= most, || {
        format!("the warning was logged {logged} times, at most {most} are expected")
    })?;
    let rest = open.split_off(open.len() / 2);
    let half = rest.len();
    drop(rest);
    for _ in 0..half {
        open.push(eventually(wait_timeout(), || begin(lab))?);
    }
    are_alive(&mut open)?;
    drop(open);
    baseline.wait_until_idle()?;
    served(lab)
}

fn are_alive(open: &mut [Conversation]) -> Outcome {
    for conversation in open {
        let answer = conversation.ask("still there?");
        ensure(answer.is_ok(), || format!("the connection from {}: {answer:?}", conversation.local()))?;
    }
    Ok(())
}
