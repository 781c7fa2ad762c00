//! Tells whether an agent runs in this network namespace.
//!
//! An agent listens at an abstract Unix socket. Every network namespace has its own abstract names, and the kernel frees
//! the name when the agent exits or is killed. A second agent, or `portway cleanup`, tries to listen at the same name, and
//! fails if an agent has it. Any process may take the name, so the user of the process that has it is compared with this
//! one's: a process of another user is no agent.

use portway_netlink::credentials::{self, Peer};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

const NAME: &str = "portway-agent";

fn listen() -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(NAME)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The holder of the name. Does not wait: a process may hold the name and accept no connection.
fn holder() -> io::Result<Peer> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(NAME.as_bytes())?)?;
    credentials::peer(&UnixStream::from(socket))
}

/// Whether the holder may be an agent: a process of this user, or of root.
fn is_agent(holder: &Peer) -> bool {
    holder.user == 0 || holder.user == rustix::process::geteuid().as_raw()
}

/// Whether an agent runs in this network namespace.
pub fn agent_is_running() -> bool {
    holder().is_ok_and(|holder| is_agent(&holder))
}

/// Makes this process known as the agent of its network namespace.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// Held as long as this agent runs.
    socket: Option<UnixListener>,
    /// The process that has the name, which is asked once.
    other: Option<Peer>,
}

impl Presence {
    /// Takes the name. Returns the other agent that has it.
    pub(crate) fn announce(&mut self) -> Option<Peer> {
        if let Some(socket) = &self.socket {
            // Connections of other agents and of `portway cleanup`, which only read the credentials of this process.
            while socket.accept().is_ok() {}
            return None;
        }
        match listen() {
            Ok(socket) => (self.socket, self.other) = (Some(socket), None),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if self.other.is_none() {
                    self.other = holder().ok();
                    if let Some(holder) = self.other.filter(|holder| !is_agent(holder)) {
                        tracing::warn!(
                            process = holder.process,
                            user = holder.user,
                            "a process of another user has the socket by which agents find each other: another agent would not be detected"
                        );
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "cannot bind the agent's socket"),
        }
        self.other.filter(is_agent)
    }
}
