//! Errors of building and using a lab.

use std::io;

/// A lab operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The network of a host could not be changed.
    #[error("in {host}: {source}")]
    Network {
        /// The host.
        host: String,
        /// The operation that failed, and the kernel's error.
        source: portway_netlink::Error,
    },
    /// Another system call failed.
    #[error("could not {operation}: {source}")]
    System {
        /// The operation.
        operation: String,
        /// The system's error.
        source: io::Error,
    },
    /// The address plan has not enough addresses.
    #[error("a lab has room for at most {limit} {objects}")]
    TooMany {
        /// The kind of objects.
        objects: &'static str,
        /// The maximum number.
        limit: usize,
    },
}

impl LabError {
    pub(crate) fn system(operation: impl Into<String>, source: impl Into<io::Error>) -> LabError {
        LabError::System { operation: operation.into(), source: source.into() }
    }
}
