//! The agent's side of the conversation with the carrier.

use crate::balance::PortId;
use crate::place::{Place, patient, tidy};
use crate::redirect::Doors;
use crate::stats::Counts;
use crate::wire::{self, Answer, Request};
use portway_dataplane::UserspaceSettings;
use portway_model::{Family, ServiceName, ServicePlan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the carrier may take to start.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long somebody who only asks for numbers waits.
const GLANCE: Duration = Duration::from_secs(1);
/// When to try again after a carrier could not be linked to.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// How long after another release has started something may still be led to the carrier of the old one.
const TAKING_OVER: Duration = Duration::from_secs(60);

/// The link. Both families and the metrics use the same.
pub struct Link {
    start: Box<dyn Fn() -> Command + Send + Sync>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    stream: Option<UnixStream>,
    /// Carriers that we started, to hear of their end.
    children: Vec<Child>,
    /// Carriers that we were linked to, this one included.
    number: u64,
    /// When it was last tried in vain, and why that was.
    failed: Option<(Instant, String)>,
    /// The process that we were last linked to.
    process: Option<u32>,
}

impl Drop for State {
    /// Carriers may outlive us, but not as processes that nobody asks about.
    fn drop(&mut self) {
        let children = std::mem::take(&mut self.children);
        if !children.is_empty() {
            let wait = || children.into_iter().for_each(|mut child| drop(child.wait()));
            _ = std::thread::Builder::new().name("carriers".into()).stack_size(64 * 1024).spawn(wait);
        }
    }
}

impl Link {
    /// To the carrier that is there, or to one that `start` starts, once it is needed.
    pub fn new(start: impl Fn() -> Command + Send + Sync + 'static) -> Link {
        Link { start: Box::new(start), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that there is a carrier. The number tells this one from those before: one that is new has to be told
    /// everything.
    pub fn ensure(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        state.look();
        if state.stream.is_none() {
            if let Some((_, why)) = state.failed.as_ref().filter(|(when, _)| when.elapsed() < TRY_AGAIN) {
                return Err(io::Error::other(why.clone()));
            }
            let was_sent_home = state.process.take().is_some_and(is_running);
            let linked = self.connect(&mut state.children, was_sent_home);
            let why = linked.as_ref().err().filter(|error| !is_superseded(error)).map(ToString::to_string);
            state.failed = why.map(|why| (Instant::now(), why));
            let (stream, process) = linked?;
            (state.stream, state.process) = (Some(stream), Some(process));
            state.number += 1;
            state.call(&Request::Begin)?;
        }
        Ok(state.number)
    }

    /// Finds the carrier, or starts one.
    fn connect(&self, children: &mut Vec<Child>, was_sent_home: bool) -> io::Result<(UnixStream, u32)> {
        if let Some(found) = find()? {
            return Ok(found);
        }
        if was_sent_home {
            // Whoever did it may be about to start another one.
            return Err(io::Error::other("somebody has sent the process that carries connections home"));
        }
        let child = (self.start)().spawn()?;
        tracing::info!(process = child.id(), "started the process that carries connections");
        children.push(child);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find()? {
                return Ok(found);
            }
            let ended = children.last_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                return Err(io::Error::other(format!(
                    "the process that carries connections ended: {status}"
                )));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("the process that carries connections does not answer"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the carrier has gone, and it is time to find another one.
    pub fn is_broken(&self) -> bool {
        let mut state = self.state();
        state.look();
        let asked = state.number > 0 || state.failed.is_some();
        let is_time = state.failed.as_ref().is_none_or(|(when, _)| when.elapsed() >= TRY_AGAIN);
        state.stream.is_none() && asked && is_time
    }

    /// Tells settings.
    pub fn configure(&self, settings: &UserspaceSettings) -> io::Result<()> {
        self.state().call(&Request::Configure(settings.clone())).map(drop)
    }

    /// Whether there is a carrier to talk to.
    pub fn is_linked(&self) -> bool {
        self.state().stream.is_some()
    }

    /// Asks for doors at one of these addresses, where they were before if that is possible; none if there is no address
    /// of that family.
    pub fn doors(
        &self,
        family: Family,
        addresses: Vec<IpAddr>,
        before: Option<Doors>,
    ) -> io::Result<Option<Doors>> {
        match self.state().call(&Request::Doors { family, addresses, before })? {
            Answer::Doors(doors) => Ok(doors),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells plans.
    pub fn change(
        &self,
        family: Family,
        services: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> io::Result<()> {
        self.state().call(&Request::Change { family, services }).map(drop)
    }

    /// Tells that the rules of a family are in place.
    pub fn settle(&self, family: Family) -> io::Result<()> {
        self.state().call(&Request::Settle(family)).map(drop)
    }

    /// What was counted; nothing if there is no carrier. It is asked for beside everything else, for whoever asks must not
    /// wait for long.
    pub fn counts(&self) -> Vec<(PortId, Counts)> {
        let ask = || -> io::Result<Vec<(PortId, Counts)>> {
            let Some(mut stream) = Place::here()?.reach()? else { return Ok(Vec::new()) };
            patient(&stream, GLANCE)?;
            match call(&mut stream, &Request::Count)? {
                Answer::Counts(counts) => Ok(counts),
                other => Err(unexpected(&other)),
            }
        };
        ask().unwrap_or_else(|error| {
            tracing::debug!(%error, "what was carried cannot be told");
            Vec::new()
        })
    }

    /// Whether another agent is linked to the carrier too.
    pub fn is_shared(&self) -> bool {
        matches!(self.state().call(&Request::Agents), Ok(Answer::Agents(agents)) if agents > 1)
    }

    /// Tells the carrier that nothing is led to it any more: it ends when its connections have, or after `limit`.
    pub fn leave(&self, limit: Duration) -> io::Result<()> {
        let mut state = self.state();
        if state.stream.is_none() {
            return Ok(());
        }
        state.call(&Request::Leave { limit: Some(limit), quiet: Duration::ZERO }).map(drop)
    }

    /// Waits until the carrier that was told to leave has gone, or for so long.
    pub fn wait(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline && self.state().stream.as_ref().is_some_and(|stream| !is_gone(stream))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Tells a carrier that nobody needs any more to leave; whether there was one comes back.
pub fn dismiss() -> io::Result<bool> {
    let found = Place::here()?.reach()?;
    tidy();
    let Some(mut carrier) = found else { return Ok(false) };
    call(&mut carrier, &Request::Leave { limit: None, quiet: Duration::ZERO })?;
    Ok(true)
}

/// Whether there is a carrier.
pub fn is_there() -> io::Result<bool> {
    Ok(Place::here()?.reach()?.is_some())
}

/// Whether a later release has taken over. Its rules are not to be touched.
pub(crate) fn is_superseded(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// The carrier that is there, and its process, if it understands us; that of an earlier release is sent home, and so is one
/// that has lost its agent.
fn find() -> io::Result<Option<(UnixStream, u32)>> {
    let Some(mut stream) = Place::here()?.reach()? else { return Ok(None) };
    match call(&mut stream, &Request::Hello) {
        Ok(Answer::Welcome { version, process, .. }) if version == wire::VERSION => {
            tracing::debug!(process, "linked to the process that carries connections");
            Ok(Some((stream, process)))
        }
        Ok(Answer::Welcome { version, agents, .. })
            if agents > 0 && wire::is_later(&version, wire::VERSION) =>
        {
            let words = format!(
                "an agent of a later release ({version}) has taken over: this one ({}) changes nothing any more",
                wire::VERSION
            );
            Err(io::Error::new(io::ErrorKind::AddrInUse, words))
        }
        Ok(Answer::Welcome { version, process, .. }) => {
            tracing::info!(process, version, "another release carries connections; it may finish them");
            call(&mut stream, &Request::Leave { limit: None, quiet: TAKING_OVER })?;
            Ok(None)
        }
        // One that is about to leave.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(None)
        }
        Err(error) => Err(error),
        Ok(other) => Err(unexpected(&other)),
    }
}

fn call(stream: &mut UnixStream, request: &Request) -> io::Result<Answer> {
    wire::write(stream, request)?;
    match wire::read(stream).map_err(in_words)? {
        Some(Answer::Failed(message)) => Err(io::Error::other(message)),
        Some(answer) => Ok(answer),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// What a socket says when nobody answered in time is hard to understand.
fn in_words(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "the process that carries connections does not answer")
        }
        _ => error,
    }
}

impl State {
    /// Says something and hears the answer; a link that fails is given up.
    fn call(&mut self, request: &Request) -> io::Result<Answer> {
        let Some(stream) = &mut self.stream else { return Err(io::ErrorKind::NotConnected.into()) };
        let answer = call(stream, request);
        if let Err(error) = &answer
            && error.kind() != io::ErrorKind::Other
        {
            self.stream = None;
            if error.kind() == io::ErrorKind::TimedOut {
                // Nobody else needs to wait as long for nothing.
                self.failed = Some((Instant::now(), error.to_string()));
            }
        }
        answer
    }

    /// Sees whether the carrier has gone.
    fn look(&mut self) {
        if self.stream.as_ref().is_some_and(is_gone) {
            self.stream = None;
        }
    }
}

/// Whether a process goes on. One that has ended, and that nobody has asked about, does not, nor does one that is about to
/// end: killed with many connections, it takes a while.
fn is_running(process: u32) -> bool {
    /// `PF_EXITING` of `include/linux/sched.h`.
    const EXITING: u32 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may be anything: state, five numbers, flags.
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let (state, flags) = (fields.next(), fields.nth(5).and_then(|flags| flags.parse::<u32>().ok()));
    !matches!(state, None | Some("Z" | "X")) && flags.is_some_and(|flags| flags & EXITING == 0)
}

/// Nobody speaks unasked: what can be read is the end.
fn is_gone(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(format!("the process that carries connections said {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_ended_is_not_running() {
        assert!(is_running(std::process::id()));
        let mut child = Command::new("true").spawn().expect("a process");
        let number = child.id();
        // Nobody has asked about it yet.
        while is_running(number) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().expect("its end");
        assert!(!is_running(number));
    }
}
