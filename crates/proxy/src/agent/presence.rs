//! Tells whether an agent runs in this network namespace.
//!
//! An agent listens at an abstract Unix socket, which every network namespace has its own names of, and which the kernel
//! removes when the process ends, however it ends. Another process connects, and the kernel tells it the listener's process.

use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

const NAME: &str = "portway-agent";

fn address() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

/// The process of the agent that runs in this network namespace, if one does.
pub fn running_agent() -> Option<u32> {
    let stream = address().and_then(|address| UnixStream::connect_addr(&address)).ok()?;
    let process = socket_peercred(&stream).ok()?.pid;
    u32::try_from(process.as_raw_nonzero().get()).ok()
}

/// Makes this process known as the agent of its network namespace.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    listener: Option<UnixListener>,
}

impl Presence {
    /// Listens, unless another agent does: then its process is returned.
    pub(crate) fn announce(&mut self) -> Option<u32> {
        if self.listener.is_some() {
            return None;
        }
        match address().and_then(|address| UnixListener::bind_addr(&address)) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return running_agent(),
            Err(error) => tracing::debug!(%error, "cannot listen at the agent's socket"),
        }
        None
    }
}
