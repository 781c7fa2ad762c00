//! Errors of netlink operations. Each says which operation failed, and whether a retry can succeed.

use std::io;

/// Result of a netlink operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A netlink operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket itself could not be opened or configured.
    #[error("netlink socket: {call}: {source}")]
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
        /// The kernel's message (extended ack), if there is one.
        detail: Option<String>,
    },
    /// The kernel's answer could not be decoded.
    #[error("kernel's answer to {operation} is malformed: {source}")]
    Malformed {
        /// The request, as a verb phrase such as "add chain x".
        operation: String,
        /// The reason.
        source: DecodeError,
    },
    /// The kernel sent no answer to a request.
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
        /// Size of the socket's send buffer.
        limit: usize,
    },
    /// Notifications were lost because they were read too slowly: the caller has to list the kernel's state.
    #[error("notifications from the kernel were lost")]
    Overrun,
}

/// Errnos from here on belong to a netlink subsystem (ipset has them), and the C library has no message for them.
const FIRST_SUBSYSTEM_ERRNO: i32 = 4096;

/// The reason of a refusal, for the error's text.
fn reason(source: &io::Error, detail: Option<&str>) -> String {
    match detail {
        Some(detail) if source.raw_os_error().is_some_and(|code| code >= FIRST_SUBSYSTEM_ERRNO) => {
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
    /// A field has a value that Portway does not know.
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
