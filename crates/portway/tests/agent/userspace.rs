//! The userspace mode: connections while pods, agents and relays start, stop and fail.

mod balancing;
mod floods;
mod host_network;
mod lifecycle;
mod proxy_header;
mod release;
mod retry;
mod switch;
mod udp;

use crate::agent_lab::{AgentLab, wait_timeout};
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

/// Tests for a kernel without nf_tables, which guests have.
pub(crate) const WITH_IPTABLES: &[Test] = switch::WITH_IPTABLES;

/// The time limit for an answer, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the agent in this mode.
fn start(lab: &mut AgentLab, flags: &[&str]) -> Outcome {
    lab.start(&[&["--proxy-mode=userspace"], flags].concat())?;
    Ok(())
}

/// The process id of the relay, from the log of the agent that started it; the latest, if there were several.
fn relay(lab: &mut AgentLab) -> Result<u32, Failed> {
    const LINE: &str = "started the relay process";
    lab.logged(&[LINE])?;
    let log = lab.agent()?.log().to_string();
    let last = log.lines().rev().find(|line| line.contains(LINE)).unwrap_or_default();
    let pid = last.split("process=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let pid = pid.and_then(|n| n.parse().ok());
    pid.ok_or_else(|| format!("no process in {last:?}").into())
}

/// Waits until the agent has started another relay.
fn another_relay(lab: &mut AgentLab, old: u32) -> Outcome {
    let started = || match relay(lab) {
        Ok(new) if new != old => Ok(new),
        _ => Err("no other relay was started"),
    };
    is_running(eventually(wait_timeout(), started)?)
}

fn process(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Waits until a process has ended; a zombie counts as ended.
fn has_ended(pid: u32) -> Outcome {
    let ended = || {
        let stat = std::fs::read_to_string(process(pid).join("stat")).unwrap_or_default();
        let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        if stat.is_empty() || zombie { Ok(()) } else { Err(format!("process {pid} is running: {stat}")) }
    };
    Ok(eventually(wait_timeout(), ended)?)
}

fn is_running(pid: u32) -> Outcome {
    ensure(process(pid).join("stat").exists(), || format!("process {pid} has ended"))
}

/// A connection from the client that stays open.
fn open(lab: &AgentLab, to: SocketAddr) -> Result<Conversation, Failed> {
    let begun = Conversation::begin(lab.client(), Protocol::Tcp, to, ANSWER_TIMEOUT);
    begun.map_err(|failure| format!("{to}: {failure}").into())
}
