//! The errors of a mode: each says what failed and what an operator can do about it.

use portway_model::Family;

/// A failure of a mode.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host lacks something that the mode needs.
    #[error("this kernel lacks {feature}: {hint}")]
    Unsupported {
        /// The missing feature or program.
        feature: String,
        /// How to get it.
        hint: String,
    },
    /// The process lacks the privilege.
    #[error("no permission to {operation}: run as root, or with CAP_NET_ADMIN in this network namespace")]
    Permission {
        /// The operation that was refused.
        operation: String,
        /// The kernel's answer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another process that the mode depends on failed.
    #[error("{process}: {source}")]
    Process {
        /// The process, in words.
        process: &'static str,
        /// The failure.
        source: std::io::Error,
    },
    /// Leftover objects are still in use by connections.
    #[error("{objects} stay until their last connection ends ({open} open)")]
    Busy {
        /// The objects, in words.
        objects: &'static str,
        /// The number of connections.
        open: usize,
    },
    /// The kernel refused a request; the next sync compares everything.
    #[error("{family}: {source}")]
    Kernel {
        /// The address family.
        family: Family,
        /// The kernel's answer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// A refusal by the kernel.
    pub fn kernel(family: Family, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Kernel { family, source: source.into() }
    }

    /// Whether only privilege is missing.
    pub fn is_permission(&self) -> bool {
        matches!(self, Error::Permission { .. })
    }
}
