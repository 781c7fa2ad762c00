//! Tells whether an agent runs in this network namespace.
//!
//! An agent listens at an abstract Unix socket. Every network namespace has its own abstract names, and the kernel frees
//! the name when the agent exits or is killed. A second agent, or `portway cleanup`, tries to listen at the same name, and
//! fails if an agent has it. Any process may take the name, so the user of the process that has it is compared with this
//! one's: a process of another user is no agent.

use portway_netlink::credentials::{self, Peer};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

const NAME: &str = "portway-agent";

fn address() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

/// The holder of the name.
fn holder() -> io::Result<Peer> {
    credentials::peer(&UnixStream::connect_addr(&address()?)?)
}

fn is_agent(holder: &Peer) -> bool {
    holder.user == rustix::process::geteuid().as_raw()
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
    /// The process that has the name: it is asked once, because nothing accepts the connections that ask for it.
    other: Option<Peer>,
}

impl Presence {
    /// Takes the name. Returns the other agent that has it.
    pub(crate) fn announce(&mut self) -> Option<Peer> {
        if self.socket.is_some() {
            return None;
        }
        match address().and_then(|address| UnixListener::bind_addr(&address)) {
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
