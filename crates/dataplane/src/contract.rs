//! The contract every mode fulfils, for one address family.

use crate::Settings;
use portway_model::{Family, ServiceName, ServicePlan};
use std::fmt;
use std::time::Duration;

/// A mode at work in one address family.
///
/// The cost of [`Dataplane::sync`] is that of what changed. After an error, and whenever [`Dataplane::distrust`]
/// was called, the next `sync` looks at the kernel first and repairs what differs: recovery is the same code as
/// the first start.
pub trait Dataplane {
    /// The family it programs.
    fn family(&self) -> Family;

    /// Makes the kernel hold what `settings` and all plans so far say. `changes` are the Services whose plan is
    /// new, or gone.
    fn sync(
        &mut self,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Result<Report, Error>;

    /// Somebody may have changed our rules: look before the next change.
    fn distrust(&mut self);

    /// Compares the kernel with what was applied, and changes nothing.
    fn verify(&mut self) -> Result<Drift, Error>;

    /// Removes everything of ours from the kernel.
    fn cleanup(&mut self) -> Result<(), Error>;
}

/// What to do about what was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// Only look.
    Look,
    /// Remove it, once no connection depends on it.
    WhenIdle,
    /// Remove it.
    Now,
}

/// What a sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The kernel was listed, and everything compared.
    pub full: bool,
    /// Rules, chains, sets and elements that were added.
    pub added: usize,
    /// Those that were removed.
    pub removed: usize,
    /// What was found to differ from what we had last applied.
    pub drift: Drift,
    /// Connections that led nowhere and were forgotten.
    pub flows_deleted: usize,
    /// How long looking for them took, if that was necessary.
    pub flows_took: Option<Duration>,
    /// What could not be tidied up afterwards; the rules themselves are in place.
    pub afterthoughts: Vec<String>,
    /// Services whose rules were refused, and are left out so that the others' are in force.
    pub refused: Vec<Refused>,
    /// Services that are programmed, but not as they ask.
    pub otherwise: Vec<Refused>,
    /// Changes that failed as such, and were made by comparing everything instead.
    pub partial_failures: usize,
    /// Netlink messages that it took, where they are counted.
    pub messages: u64,
    /// How many rules there are, for modes that have rules for Services.
    pub tables: Vec<TableRules>,
}

/// A Service whose rules were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which.
    pub service: ServiceName,
    /// Why, with the rule.
    pub reason: String,
}

/// The rules in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRules {
    /// Which table.
    pub table: &'static str,
    /// How many are ours.
    pub total: usize,
    /// How many were written by this sync.
    pub written: usize,
}

/// How the kernel differs from what was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Ours, and not there.
    pub missing: usize,
    /// Ours, but changed.
    pub altered: usize,
    /// Not ours, in our table.
    pub foreign: usize,
    /// Some of them, in words.
    pub examples: Vec<String>,
}

impl Drift {
    /// Whether all is as it should be.
    pub fn is_empty(&self) -> bool {
        self.missing + self.altered + self.foreign == 0
    }

    /// Notes one difference, keeping the first few for the log.
    pub fn note(&mut self, what: impl fmt::Display) {
        if self.examples.len() < 8 {
            self.examples.push(what.to_string());
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing differs");
        }
        write!(f, "{} missing, {} altered, {} foreign", self.missing, self.altered, self.foreign)?;
        if let Some((first, rest)) = self.examples.split_first() {
            write!(f, ": {first}")?;
            rest.iter().try_for_each(|e| write!(f, ", {e}"))?;
            if self.examples.len() < self.missing + self.altered + self.foreign {
                f.write_str(", …")?;
            }
        }
        Ok(())
    }
}

/// Why a mode could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel lacks something this mode needs.
    #[error("this kernel lacks {feature}: {hint}")]
    Unsupported {
        /// What is missing.
        feature: String,
        /// What to do about it.
        hint: String,
    },
    /// We may not.
    #[error("no permission to {operation}: run as root, or with CAP_NET_ADMIN in this network namespace")]
    Permission {
        /// What we tried.
        operation: String,
        /// What the kernel said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A process that we need, or need no more, does not do as it is told.
    #[error("{what}: {source}")]
    Process {
        /// Which.
        what: &'static str,
        /// What came of it.
        source: std::io::Error,
    },
    /// Connections need what is to go.
    #[error(
        "connections through ipvs are still open ({open}), so its servers and addresses stay until the last one ends"
    )]
    Busy {
        /// How many.
        open: usize,
    },
    /// The kernel refused; the next attempt begins by looking at what it holds.
    #[error("{family}: {source}")]
    Kernel {
        /// Where.
        family: Family,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
