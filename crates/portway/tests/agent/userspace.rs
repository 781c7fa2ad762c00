//! The userspace mode as an operator meets it: connections while pods, agents and relays die.

mod balancing;
mod floods;
mod host_network;
mod lifecycle;
mod proxy_header;
mod release;
mod retry;
mod switch;
mod udp;

use crate::agent_lab::{AgentLab, patience};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Protocol, eventually};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The tests, in groups.
pub(crate) const GROUPS: &[(&str, &[Test])] = &[
    ("lifecycle", lifecycle::TESTS),
    ("release", release::TESTS),
    ("retry", retry::TESTS),
    ("proxy_header", proxy_header::TESTS),
    ("host_network", host_network::TESTS),
    ("balancing", balancing::TESTS),
    ("switch", switch::TESTS),
    ("udp", udp::TESTS),
    ("floods", floods::TESTS),
];

/// Tests for a kernel without nf_tables, such as that of a guest.
pub(crate) const WITH_IPTABLES: &[Test] = switch::WITH_IPTABLES;

/// How long an answer may take on a busy machine.
const ANSWER: Duration = Duration::from_secs(2);

/// Starts the agent in this mode.
fn start(world: &mut AgentLab, flags: &[&str]) -> Outcome {
    world.start(&[&["--proxy-mode=userspace"], flags].concat())?;
    Ok(())
}

/// The relay process, as the agent that started it logs it; the latest, if there were several.
fn relay(world: &mut AgentLab) -> Result<u32, Failed> {
    const LINE: &str = "started the relay process";
    world.logged(&[LINE])?;
    let log = world.agent()?.log().to_string();
    let last = log.lines().rev().find(|line| line.contains(LINE)).unwrap_or_default();
    let number = last.split("process=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let number = number.and_then(|n| n.parse().ok());
    number.ok_or_else(|| format!("no process in {last:?}").into())
}

/// Waits until the agent has started another relay.
fn another(world: &mut AgentLab, old: u32) -> Outcome {
    let started = || match relay(world) {
        Ok(new) if new != old => Ok(new),
        _ => Err("no other relay was started"),
    };
    is_running(eventually(patience(), started)?)
}

fn process(number: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{number}"))
}

/// Waits until a process has ended; a zombie has.
fn has_ended(number: u32) -> Outcome {
    let ended = || {
        let stat = std::fs::read_to_string(process(number).join("stat")).unwrap_or_default();
        let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        if stat.is_empty() || zombie { Ok(()) } else { Err(format!("process {number} runs: {stat}")) }
    };
    Ok(eventually(patience(), ended)?)
}

fn is_running(number: u32) -> Outcome {
    ensure(process(number).join("stat").exists(), || format!("process {number} has ended"))
}

/// A connection from the client that stays open.
fn open(world: &AgentLab, to: SocketAddr) -> Result<Conversation, Failed> {
    let begun = Conversation::begin(world.client(), Protocol::Tcp, to, ANSWER);
    begun.map_err(|failure| format!("{to}: {failure}").into())
}
