//! What can go wrong between us and the kernel, told so that a caller knows which operation failed and whether
//! trying again can help.

use std::io;

/// Result of a netlink operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A netlink operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket itself could not be opened or configured.
    #[error("netlink socket: {what}: {source}")]
    Socket {
        /// The system call, in words.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel refused an operation.
    #[error("kernel refused to {operation}: {}", why(source, detail.as_deref()))]
    Refused {
        /// What was asked, in words.
        operation: String,
        /// The errno, as an error.
        source: io::Error,
        /// The kernel's own words (extended ack), if it gave any.
        detail: Option<String>,
    },
    /// The kernel's answer does not make sense.
    #[error("kernel's answer to {operation} is malformed: {source}")]
    Malformed {
        /// What was asked, in words.
        operation: String,
        /// What is wrong with it.
        source: Malformed,
    },
    /// The kernel said nothing where it must have answered.
    #[error("no answer from the kernel to {0}")]
    NoAnswer(String),
    /// A batch is larger than the socket may send at once.
    #[error(
        "a batch of {bytes} bytes does not fit the socket's send buffer of {limit}: \
         raise net.core.wmem_max, or run with CAP_NET_ADMIN in the initial user namespace"
    )]
    TooLarge {
        /// Size of the batch.
        bytes: usize,
        /// What the socket takes.
        limit: usize,
    },
    /// Notifications were lost because we read too slowly: look at the kernel's state instead.
    #[error("notifications from the kernel were lost")]
    Overrun,
}

/// Why, in words. Some subsystems have errors of their own (4096 and up), of which the system knows nothing.
fn why(source: &io::Error, detail: Option<&str>) -> String {
    match detail {
        Some(detail) if source.raw_os_error().is_some_and(|code| code >= 4096) => detail.to_owned(),
        Some(detail) => format!("{source} ({detail})"),
        None => source.to_string(),
    }
}

impl Error {
    /// The errno behind it, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Socket { source, .. } | Error::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the process lacks the right to do this.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }

    /// Whether the object asked for is not there.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    /// Whether the object to be made is there already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether the same request may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(self.errno(), Some(libc::EINTR | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EBUSY))
            || matches!(self, Error::Overrun)
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message or attribute ends before it should.
    #[error("{0} is cut short")]
    Short(&'static str),
    /// An attribute that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A value outside of what is known.
    #[error("{what} has an unknown value {value}")]
    Unknown {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Text that is not text.
    #[error("{0} is not valid text")]
    Text(&'static str),
}
