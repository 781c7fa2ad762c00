//! More connections than there are file descriptors for.

use super::{ANSWER, Scene, served};
use crate::agent_lab::{AgentLab, PORTWAY, WEB, patience};
use crate::{Outcome, ensure};
use portway_lab::{Conversation, Failure, Probe, Protocol, eventually};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

/// The descriptor limit of the agent, and so of the relay that it starts.
const DESCRIPTORS: u32 = 256;
/// Connections that these descriptors allow: 64 are reserved and 3 are for pipes alone.
const ENOUGH_FOR: usize = 94;

pub(super) fn without_descriptors(world: &mut AgentLab) -> Outcome {
    // Root can raise the limit, unless it has dropped CAP_SYS_RESOURCE.
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-sys_resource",
        "prlimit",
        &format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}"),
    ]);
    command.args([PORTWAY, "proxy", "--proxy-mode=userspace"]).args(world.flags());
    world.start_as(command)?;
    let scene = Scene::look(world)?;
    let began = Instant::now();
    let to = SocketAddr::new(WEB[0], 80);
    let begin = |world: &AgentLab| Conversation::begin(world.client(), Protocol::Tcp, to, ANSWER);
    let mut open = Vec::new();
    let refused = loop {
        match begin(world) {
            Ok(conversation) if open.len() < ENOUGH_FOR => open.push(conversation),
            Ok(_) => return Err(format!("more than {ENOUGH_FOR} connections are open").into()),
            Err(failure) => break failure,
        }
    };
    ensure(matches!(refused, Failure::Reset | Failure::Refused), || format!("one too many: {refused}"))?;
    ensure(open.len() > ENOUGH_FOR / 2, || format!("only {} connections could be opened", open.len()))?;
    let outcome = Probe::tcp(world.client(), to).count(200).timeout(ANSWER).run();
    ensure(outcome.answered() == 0 && outcome.timed_out == 0, || format!("too many: {outcome}"))?;
    are_alive(&mut open)?;
    let words = "new connections are refused";
    world.logged(&["WARN", words, "raise LimitNOFILE="])?;
    let (logged, turns) = (world.agent()?.log().count(words), 1 + began.elapsed().as_secs() / 10);
    ensure(logged as u64 <= turns, || format!("it was logged {logged} times"))?;
    let rest = open.split_off(open.len() / 2);
    let half = rest.len();
    drop(rest);
    for _ in 0..half {
        open.push(eventually(patience(), || begin(world))?);
    }
    are_alive(&mut open)?;
    drop(open);
    scene.is_idle_again()?;
    served(world)
}

fn are_alive(open: &mut [Conversation]) -> Outcome {
    for conversation in open {
        let answer = conversation.ask("still there?");
        ensure(answer.is_ok(), || format!("the connection from {}: {answer:?}", conversation.local()))?;
    }
    Ok(())
}
