//! Errors of netlink operations. Each names the operation that failed, and whether a retry may succeed.

use std::io;

/// Result of a netlink operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A netlink operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on the socket failed.
    #[error("system call {call} failed: {source}")]
    Socket {
        /// The system call that failed.
        call: &'static str,
        /// Its errno, as an error.
        source: io::Error,
    },
    /// The kernel refused an operation.
    #[error("kernel refused to {operation}: {}", reason(source, detail.as_deref()))]
    Refused {
        /// The request, as a verb phrase such as "add chain x".
        operation: String,
        /// The errno, as an error.
        source: io::Error,
        /// The text of the extended acknowledgement, if there is one.
        detail: Option<String>,
    },
    /// A message from the kernel could not be decoded.
    #[error("malformed message from the kernel: {operation}: {source}")]
    Malformed {
        /// The request, as a verb phrase such as "list chains", or "read a notification".
        operation: String,
        /// The reason.
        source: DecodeError,
    },
    /// The kernel sent no answer to a request.
    #[error("no answer from the kernel: {0}")]
    NoAnswer(String),
    /// A batch does not fit the send buffer of the socket.
    #[error(
        "a batch of {bytes} bytes does not fit the socket's send buffer of {limit}: \
         raise net.core.wmem_max, or run with CAP_NET_ADMIN in the initial user namespace"
    )]
    TooLarge {
        /// Size of the batch.
        bytes: usize,
        /// Size of the socket's send buffer.
        limit: usize,
    },
    /// Messages were lost because they did not fit the receive buffer. If they were notifications, the caller has to
    /// list the objects.
    #[error("messages from the kernel were lost: the receive buffer of the socket is full")]
    Overrun,
}

/// From this errno on, errnos are private to ipset, and the C library has no text for them
/// (`linux/netfilter/ipset/ip_set.h`).
const IPSET_ERR_PRIVATE: i32 = 4096;

/// The reason for a refusal, as part of the error text.
fn reason(source: &io::Error, detail: Option<&str>) -> String {
    match detail {
        Some(detail) if source.raw_os_error().is_some_and(|code| code >= IPSET_ERR_PRIVATE) => {
            detail.to_owned()
        }
        Some(detail) => format!("{source} ({detail})"),
        None => source.to_string(),
    }
}

impl Error {
    /// The errno, if the error has one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Socket { source, .. } | Error::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether the process lacks the privilege (`EPERM`, `EACCES`).
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }

    /// Whether the object does not exist (`ENOENT`).
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    /// Whether the object to be created exists (`EEXIST`).
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// Whether a retry of the same request may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self.errno(), Some(libc::EINTR | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EBUSY))
            || matches!(self, Error::Overrun)
    }
}

/// Bytes that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A message or attribute ends too early.
    #[error("{0} is truncated")]
    Truncated(&'static str),
    /// A required attribute is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has a value that this crate does not know.
    #[error("{field} has an unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A string is not valid UTF-8.
    #[error("{0} is not valid UTF-8")]
    NotUtf8(&'static str),
}
