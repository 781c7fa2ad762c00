//! The errors of a mode. Where an operator can correct the cause, the message says how.

use portway_model::Family;

/// A failure of a mode.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host lacks something that the mode needs.
    #[error("this kernel lacks {feature}: {hint}")]
    Unsupported {
        /// The missing feature or program.
        feature: String,
        /// How to install or enable it.
        hint: String,
    },
    /// The process lacks the privilege.
    #[error("no permission to {operation}: run as root, or with CAP_NET_ADMIN in this network namespace")]
    Permission {
        /// The operation that was refused.
        operation: String,
        /// The kernel's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another process that the mode depends on failed.
    #[error("{process}: {source}")]
    Process {
        /// The name of the process.
        process: &'static str,
        /// The failure.
        source: std::io::Error,
    },
    /// Leftover objects are still in use by connections.
    #[error("{objects} stay until their last connection ends ({open} open)")]
    Busy {
        /// A description of the objects.
        objects: &'static str,
        /// The number of connections.
        open: usize,
    },
    /// The kernel refused a request; the next sync compares all rules.
    #[error("{family}: {source}")]
    Kernel {
        /// The address family.
        family: Family,
        /// The kernel's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// An error of the kernel.
    pub fn kernel(family: Family, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Kernel { family, source: source.into() }
    }

    /// Whether the process lacks the privilege.
    pub fn is_permission(&self) -> bool {
        matches!(self, Error::Permission { .. })
    }
}
