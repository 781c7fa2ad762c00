//! The agent's side of the protocol: finds or starts the relay, and sends it requests.

use crate::balance::PortId;
use crate::control_socket::{ControlSocket, remove_stale_sockets, set_timeouts};
use crate::loopback::LoopbackCounts;
use crate::redirect::ListenerPorts;
use crate::stats::Counts;
use crate::wire::{self, Answer, Request};
use portway_dataplane::UserspaceSettings;
use portway_model::{Family, ServiceName, ServicePlan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the relay may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request for counters may take: a scrape of the metrics waits for it.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between attempts to connect to a relay or to start one.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long rules may still point to the relay of an old release after the agent of a new release has started.
const TAKE_OVER_TIME: Duration = Duration::from_secs(60);

/// The connection to the relay. Both families and the metrics share one.
pub struct RelayClient {
    start: Box<dyn Fn() -> Command + Send + Sync>,
    state: Mutex<State>,
    /// How many relays have ended with their connections; read by scrapes, which must not wait for the state.
    ended: Arc<AtomicU64>,
}

impl std::fmt::Debug for RelayClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayClient").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    stream: Option<UnixStream>,
    /// Relays that this process started, to be waited for.
    children: Vec<Child>,
    /// How many relays were connected to so far, the present one included.
    number: u64,
    /// When the last attempt failed, and its error.
    failed: Option<(Instant, String)>,
    /// The process of the last relay that was connected to.
    process: Option<u32>,
    ended: Arc<AtomicU64>,
}

impl Drop for State {
    /// Relays may outlive the client.
    fn drop(&mut self) {
        reap(std::mem::take(&mut self.children));
    }
}

/// Waits for processes in a thread, so that none stays a zombie.
fn reap(children: Vec<Child>) {
    if !children.is_empty() {
        let wait = || children.into_iter().for_each(|mut child| drop(child.wait()));
        _ = std::thread::Builder::new().name("relays".into()).stack_size(64 * 1024).spawn(wait);
    }
}

impl RelayClient {
    /// Connects, once needed, to the running relay or to one that `start` starts.
    pub fn new(start: impl Fn() -> Command + Send + Sync + 'static) -> RelayClient {
        let state = State::default();
        let ended = state.ended.clone();
        RelayClient { start: Box::new(start), state: Mutex::new(state), ended }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to a relay unless connected. The returned number identifies the connection: over a new one, settings
    /// and all plans have to be sent again.
    pub fn ensure_connected(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        state.drop_closed_stream();
        if state.stream.is_none() {
            let recent = state.failed.as_ref().filter(|(when, _)| when.elapsed() < RETRY_INTERVAL);
            if let Some((_, error)) = recent {
                return Err(io::Error::other(error.clone()));
            }
            // The relay closes connections of agents when another process asks it to shut down.
            let is_shutting_down = state.process.take().is_some_and(process_is_running);
            let connected = self.connect(&mut state.children, is_shutting_down);
            let error = connected.as_ref().err().filter(|error| !is_superseded(error));
            state.failed = error.map(|error| (Instant::now(), error.to_string()));
            let (stream, process) = connected?;
            (state.stream, state.process) = (Some(stream), Some(process));
            state.number += 1;
            state.call(&Request::Begin)?;
        }
        Ok(state.number)
    }

    /// Finds the relay, or starts one.
    fn connect(&self, children: &mut Vec<Child>, is_shutting_down: bool) -> io::Result<(UnixStream, u32)> {
        if let Some(found) = find()? {
            return Ok(found);
        }
        if is_shutting_down {
            // The process that asked for it may be about to start another relay.
            return Err(io::Error::other("another process asked the relay to shut down"));
        }
        let child = (self.start)().spawn()?;
        tracing::info!(process = child.id(), "started the relay process");
        children.push(child);
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(found) = find()? {
                return Ok(found);
            }
            let ended = children.last_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                return Err(io::Error::other(format!("the relay process ended during its start: {status}")));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(NO_ANSWER));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the connection is lost and the next attempt is due.
    pub fn is_reconnect_due(&self) -> bool {
        let mut state = self.state();
        state.drop_closed_stream();
        let was_used = state.number > 0 || state.failed.is_some();
        let is_due = state.failed.as_ref().is_none_or(|(when, _)| when.elapsed() >= RETRY_INTERVAL);
        state.stream.is_none() && was_used && is_due
    }

    /// Sends settings.
    pub fn configure(&self, settings: &UserspaceSettings) -> io::Result<()> {
        self.state().call(&Request::Configure(settings.clone())).map(drop)
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        self.state().stream.is_some()
    }

    /// Asks for listeners at one of these addresses, if possible at the previous ports; none if no address is of that
    /// family.
    pub fn listeners(
        &self,
        family: Family,
        addresses: Vec<IpAddr>,
        previous: Option<ListenerPorts>,
    ) -> io::Result<Option<ListenerPorts>> {
        match self.state().call(&Request::Listeners { family, addresses, previous })? {
            Answer::Listeners(ports) => Ok(ports),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends plans.
    pub fn change(
        &self,
        family: Family,
        services: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> io::Result<()> {
        self.state().call(&Request::Change { family, services }).map(drop)
    }

    /// Reports to the relay that the rules of a family are committed.
    pub fn commit_routes(&self, family: Family) -> io::Result<()> {
        self.state().call(&Request::CommitRoutes(family)).map(drop)
    }

    /// Asks the relay to hand its UDP flows over to the kernel.
    pub fn hand_over_udp(&self) -> io::Result<()> {
        self.state().call(&Request::HandOverUdp).map(drop)
    }

    /// The counters of all Service ports; empty without a relay. It uses a connection of its own, so that a scrape does
    /// not wait for a long request.
    pub fn counts(&self) -> Vec<(PortId, Counts)> {
        match ask(&Request::Count) {
            Some(Answer::Counts(counts)) => counts,
            _ => Vec::new(),
        }
    }

    /// The numbers of listeners at loopback addresses, over a connection of its own.
    pub(crate) fn loopback_counts(&self) -> LoopbackCounts {
        match ask(&Request::CountLoopback) {
            Some(Answer::LoopbackCounts(counts)) => counts,
            _ => LoopbackCounts::default(),
        }
    }

    /// How many relays have ended unexpectedly.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Relaxed)
    }

    /// Whether another agent is connected to the relay too.
    pub fn is_shared(&self) -> bool {
        matches!(self.state().call(&Request::Agents), Ok(Answer::Agents(agents)) if agents > 1)
    }

    /// Asks the relay, to which no rule points any more, to shut down: it ends after its last connection, or after
    /// `limit`.
    pub fn shut_down(&self, limit: Duration) -> io::Result<()> {
        let mut state = self.state();
        if state.stream.is_none() {
            return Ok(());
        }
        state.call(&Request::Leave { limit: Some(limit), quiet: Duration::ZERO }).map(drop)
    }

    /// Asks the relay to shut down as [`RelayClient::shut_down`] does, and forgets it: another one is started when one is
    /// needed again.
    pub fn leave(&self, limit: Duration) {
        // An error means that the relay has ended already.
        match self.is_connected() {
            true => _ = self.shut_down(limit),
            false => _ = shut_down_relay(),
        }
        let mut state = self.state();
        (state.stream, state.process, state.failed) = (None, None, None);
        reap(std::mem::take(&mut state.children));
    }

    /// Waits until the relay has ended after [`RelayClient::shut_down`], at most for `limit`.
    pub fn wait(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let is_open = || self.state().stream.as_ref().is_some_and(|stream| !is_closed(stream));
        while Instant::now() < deadline && is_open() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The answer of the running relay to a request for counters; none without a relay of this release.
fn ask(request: &Request) -> Option<Answer> {
    let ask = || -> io::Result<Option<Answer>> {
        let Some(mut stream) = ControlSocket::of_this_namespace()?.connect()? else { return Ok(None) };
        set_timeouts(&stream, COUNT_TIMEOUT)?;
        // A relay of another release may encode its counters differently.
        match call(&mut stream, &Request::Hello)? {
            Answer::Welcome { version, .. } if version == wire::VERSION => {}
            _ => return Ok(None),
        }
        call(&mut stream, request).map(Some)
    };
    ask().unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot read the relay's counters");
        None
    })
}

/// Asks the relay of this network namespace to shut down, and removes the sockets of relays that were killed. Returns
/// whether a relay was running.
pub(crate) fn shut_down_relay() -> io::Result<bool> {
    let relay = ControlSocket::of_this_namespace()?.connect()?;
    remove_stale_sockets();
    let Some(mut relay) = relay else { return Ok(false) };
    call(&mut relay, &Request::Leave { limit: None, quiet: Duration::ZERO })?;
    Ok(true)
}

/// Whether a relay runs in this network namespace.
pub(crate) fn relay_is_running() -> io::Result<bool> {
    Ok(ControlSocket::of_this_namespace()?.connect()?.is_some())
}

/// Whether the error means that an agent of a later release has taken over. Its rules must not be changed.
pub(crate) fn is_superseded(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Connects to the running relay, if it has the same version, and returns its process. A relay of another release is
/// asked to shut down, unless that release is later and has an agent.
fn find() -> io::Result<Option<(UnixStream, u32)>> {
    let Some(mut stream) = ControlSocket::of_this_namespace()?.connect()? else { return Ok(None) };
    match call(&mut stream, &Request::Hello) {
        Ok(Answer::Welcome { version, process, .. }) if version == wire::VERSION => {
            tracing::debug!(process, "connected to the relay");
            Ok(Some((stream, process)))
        }
        Ok(Answer::Welcome { version, agents, .. })
            if agents > 0 && wire::is_later(&version, wire::VERSION) =>
        {
            let message = format!(
                "an agent of a later release ({version}) has taken over: this agent ({}) no longer changes rules",
                wire::VERSION
            );
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
        Ok(Answer::Welcome { version, process, .. }) => {
            tracing::info!(
                process,
                version,
                "asked the relay of another release to shut down; its open connections may finish"
            );
            call(&mut stream, &Request::Leave { limit: None, quiet: TAKE_OVER_TIME })?;
            Ok(None)
        }
        // The relay is about to end.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(None)
        }
        Err(error) => Err(error),
        Ok(other) => Err(unexpected(&other)),
    }
}

fn call(stream: &mut UnixStream, request: &Request) -> io::Result<Answer> {
    wire::write(stream, request)?;
    match wire::read(stream).map_err(explain_timeout)? {
        Some(Answer::Failed(message)) => Err(io::Error::other(message)),
        Some(answer) => Ok(answer),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

const NO_ANSWER: &str = "the relay process does not answer";

/// A read that timed out fails with EAGAIN, "Resource temporarily unavailable", which does not name the cause.
fn explain_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, NO_ANSWER)
        }
        _ => error,
    }
}

impl State {
    /// Sends a request and reads the answer. A connection that fails is closed.
    fn call(&mut self, request: &Request) -> io::Result<Answer> {
        let Some(stream) = &mut self.stream else { return Err(io::ErrorKind::NotConnected.into()) };
        let answer = call(stream, request);
        if let Err(error) = &answer
            && error.kind() != io::ErrorKind::Other
        {
            self.stream = None;
            if error.kind() == io::ErrorKind::TimedOut {
                // The other family then fails at once, instead of waiting for a time-out of its own.
                self.failed = Some((Instant::now(), error.to_string()));
            }
        }
        answer
    }

    fn drop_closed_stream(&mut self) {
        if self.stream.as_ref().is_some_and(is_closed) {
            self.stream = None;
            if let Some(process) = self.process.filter(|process| !process_is_running(*process)) {
                self.ended.fetch_add(1, Relaxed);
                tracing::warn!(process, "the relay process ended, and its open connections with it");
            }
        }
    }
}

/// Whether a process runs. A zombie does not, nor does a process that is exiting: one that was killed with many open
/// connections takes a while to end.
fn process_is_running(process: u32) -> bool {
    /// `PF_EXITING` of `include/linux/sched.h`.
    const PF_EXITING: u32 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may contain any character: the state, five numbers, the flags (proc_pid_stat(5)).
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let (state, flags) = (fields.next(), fields.nth(5).and_then(|flags| flags.parse::<u32>().ok()));
    !matches!(state, None | Some("Z" | "X")) && flags.is_some_and(|flags| flags & PF_EXITING == 0)
}

/// Whether the relay has closed the connection. It sends nothing without a request, so readable means closed.
fn is_closed(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(format!("the relay process gave an unexpected answer: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_is_not_running() {
        assert!(process_is_running(std::process::id()));
        let mut child = Command::new("true").spawn().expect("a process");
        let number = child.id();
        // A zombie until it is waited for.
        while process_is_running(number) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().expect("its status");
        assert!(!process_is_running(number));
    }
}
