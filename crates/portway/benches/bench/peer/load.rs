//! New connections at a steady rate, whether or not earlier ones were answered.
//!
//! With a fixed number of clients that wait for answers, an outage would lower the rate and so the number of failures.
//! Here one thread begins each connection when it is due and waits for all of them at once. A connection has failed if
//! it is refused, or not established within [`DEADLINE`]: the client sends a lost first packet again after a second, so
//! a connection whose first packet is lost has failed, even if the second one arrives.

use portway_lab::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Connections per second.
pub(super) const RATE: u32 = 200;
/// The source ports, used one after the other. A connection without rules leaves a conntrack entry for its port, and a
/// later one from that port would fail after the repair too. The ports suffice for a load of four minutes.
const SOURCE_PORTS: std::ops::Range<u16> = 10_000..60_000;
/// How long a connection may take; less than the second after which TCP sends its first packet again.
const DEADLINE: Duration = Duration::from_millis(900);

/// A running load.
pub(super) struct Load {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<Attempt>>>,
}

/// A connection: when it began, and whether it was established.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) began: Instant,
    pub(super) established: bool,
}

/// A connection that is not established yet.
struct Pending {
    socket: OwnedFd,
    began: Instant,
}

impl Load {
    /// Connects from `namespace` to `target`, an IPv4 address.
    pub(super) fn start(namespace: &Namespace, target: SocketAddr) -> Load {
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = stopped.clone();
        let thread = namespace.run(|| thread::spawn(move || generate(target, &flag)));
        Load { stopped, thread }
    }

    /// Begins no more connections, waits for those under way, and returns all of them.
    pub(super) fn stop(self) -> Result<Vec<Attempt>, String> {
        self.stopped.store(true, Ordering::Relaxed);
        let attempts = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        attempts.map_err(|e| format!("cannot open connections: {e}"))
    }
}

fn generate(target: SocketAddr, stopped: &AtomicBool) -> io::Result<Vec<Attempt>> {
    let interval = Duration::from_secs(1) / RATE;
    let (mut attempts, mut pending) = (Vec::new(), Vec::new());
    let mut ports = SOURCE_PORTS.cycle();
    let mut due = Instant::now();
    loop {
        let is_over = stopped.load(Ordering::Relaxed);
        if is_over && pending.is_empty() {
            return Ok(attempts);
        }
        while !is_over && due <= Instant::now() {
            pending.push(begin(ports.next().unwrap_or(0), target)?);
            due += interval;
        }
        let wait = if is_over { interval } else { due.saturating_duration_since(Instant::now()) };
        let ready = wait_for_any(&pending, wait)?;
        let mut ready = ready.into_iter();
        pending.retain(|connection| {
            let is_ready = ready.next().unwrap_or(false);
            if !is_ready && connection.began.elapsed() < DEADLINE {
                return true;
            }
            let established = is_ready && sockopt::socket_error(&connection.socket).is_ok_and(|r| r.is_ok());
            attempts.push(Attempt { began: connection.began, established });
            false
        });
    }
}

fn begin(port: u16, target: SocketAddr) -> io::Result<Pending> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    let began = Instant::now();
    match connect(&socket, &target) {
        // A refusal at once is found as the socket's error, as a later one is.
        Ok(()) | Err(Errno::INPROGRESS | Errno::CONNREFUSED) => Ok(Pending { socket, began }),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a connection is established or refused; returns which are.
fn wait_for_any(pending: &[Pending], wait: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        pending.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::OUT)).collect();
    let wait =
        Timespec { tv_sec: 0, tv_nsec: i64::from(wait.min(Duration::from_millis(500)).subsec_nanos()) };
    match poll(&mut polled, Some(&wait)) {
        Ok(_) | Err(Errno::INTR) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(error) => Err(error.into()),
    }
}
