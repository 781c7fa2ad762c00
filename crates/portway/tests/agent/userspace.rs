//! The userspace mode as an operator meets it: what becomes of connections when pods, agents and carriers die.

mod choice;
mod floods;
mod header;
mod host;
mod life;
mod release;
mod retry;
mod switch;
mod udp;

use crate::world::{World, patience};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Protocol, eventually};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The rooms.
pub(crate) const ROOMS: &[(&str, &[Test])] = &[
    ("life", life::TESTS),
    ("release", release::TESTS),
    ("retry", retry::TESTS),
    ("header", header::TESTS),
    ("host", host::TESTS),
    ("choice", choice::TESTS),
    ("switch", switch::TESTS),
    ("udp", udp::TESTS),
    ("floods", floods::TESTS),
];

/// A kernel without nf_tables, such as that of a guest.
pub(crate) const WITH_IPTABLES: &[Test] = switch::WITH_IPTABLES;

/// How long an answer may take on a busy machine.
const ANSWER: Duration = Duration::from_secs(2);

/// Starts the agent in this mode.
fn start(world: &mut World, flags: &[&str]) -> Outcome {
    world.start(&[&["--proxy-mode=userspace"], flags].concat())?;
    Ok(())
}

/// The process that carries connections, as the agent that started it says; the latest, if there were several.
fn carrier(world: &mut World) -> Result<u32, Failed> {
    const LINE: &str = "started the process that carries connections";
    world.logged(&[LINE])?;
    let log = world.agent()?.log().to_string();
    let last = log.lines().rev().find(|line| line.contains(LINE)).unwrap_or_default();
    let number = last.split("process=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let number = number.and_then(|n| n.parse().ok());
    number.ok_or_else(|| format!("no process in {last:?}").into())
}

/// Waits until the agent has started another one.
fn another(world: &mut World, old: u32) -> Outcome {
    let started = || match carrier(world) {
        Ok(new) if new != old => Ok(new),
        _ => Err("no other was started"),
    };
    is_there(eventually(patience(), started)?)
}

fn process(number: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{number}"))
}

/// Waits until a process is gone; one that has ended and that nobody has asked about is.
fn is_gone(number: u32) -> Outcome {
    let ended = || {
        let stat = std::fs::read_to_string(process(number).join("stat")).unwrap_or_default();
        let zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        if stat.is_empty() || zombie { Ok(()) } else { Err(format!("process {number} is there: {stat}")) }
    };
    Ok(eventually(patience(), ended)?)
}

fn is_there(number: u32) -> Outcome {
    ensure(process(number).join("stat").exists(), || format!("process {number} is gone"))
}

/// A connection from the client that stays open.
fn open(world: &World, to: SocketAddr) -> Result<Conversation, Failed> {
    let begun = Conversation::begin(world.client(), Protocol::Tcp, to, ANSWER);
    begun.map_err(|failure| format!("{to}: {failure}").into())
}
