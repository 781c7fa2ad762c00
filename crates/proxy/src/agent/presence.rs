//! Tells whether an agent runs in this network namespace.
//!
//! An agent binds an abstract Unix socket. Every network namespace has its own abstract names, and the kernel frees the name
//! when the agent exits or is killed. No process connects to the socket: a second agent, or `portway cleanup`, tries to
//! bind the same name, and fails if an agent has it.

use super::rivals::{self, Rival};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const NAME: &str = "portway-agent";

fn bind() -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(NAME)?)
}

/// Whether an agent runs in this network namespace.
pub fn agent_is_running() -> bool {
    bind().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// Makes this process known as the agent of its network namespace.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    socket: Option<UnixDatagram>,
}

impl Presence {
    /// Binds the name. Returns the other agent that has it.
    pub(crate) fn announce(&mut self) -> Option<Rival> {
        if self.socket.is_some() {
            return None;
        }
        match bind() {
            Ok(socket) => self.socket = Some(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Some(rivals::find_agent().unwrap_or_else(Rival::hidden_agent));
            }
            Err(error) => tracing::debug!(%error, "cannot bind the agent's socket"),
        }
        None
    }
}
