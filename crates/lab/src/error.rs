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
        /// Which operation, and why.
        source: portway_netlink::Error,
    },
    /// The system refused something else.
    #[error("could not {what}: {source}")]
    System {
        /// What, in words.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The address plan has no room for that.
    #[error("a lab has room for at most {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
}

impl LabError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> LabError {
        LabError::System { what: what.into(), source: source.into() }
    }
}
