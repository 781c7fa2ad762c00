//! The result of a sync, for logs, metrics and Events.

use crate::Drift;
use portway_model::ServiceName;
use std::time::Duration;

/// The result of one sync of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The kernel was listed, and all rules were compared.
    pub full: bool,
    /// Rules, chains, sets and elements that were added.
    pub added: usize,
    /// Rules, chains, sets and elements that were removed.
    pub removed: usize,
    /// The changes by other processes, which are repaired now.
    pub drift: Drift,
    /// UDP conntrack entries that no longer matched a Service, and were deleted.
    pub flows_deleted: usize,
    /// How long their removal took, with the search for them; `None` if there was no search.
    pub flows_took: Option<Duration>,
    /// Failures that leave the rules in place: a sysctl that could not be set, for example.
    pub warnings: Vec<String>,
    /// Services whose rules were refused, and are left out so that the rules of all other Services are in force.
    pub refused: Vec<Refused>,
    /// Services that are programmed, but not with everything that they ask for.
    pub degraded: Vec<Refused>,
    /// Incremental changes that failed, and were made by comparing all rules instead.
    pub partial_failures: usize,
    /// Netlink messages that were sent, where they are counted.
    pub messages: u64,
    /// The number of rules in each table, for modes with iptables rules.
    pub tables: Vec<TableRules>,
}

impl Report {
    /// Whether the sync changed anything in the kernel.
    pub fn changed(&self) -> bool {
        self.added + self.removed > 0
    }
}

/// A Service that is not programmed, or not with everything that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The Service.
    pub service: ServiceName,
    /// The reason, with the rule or field concerned.
    pub reason: String,
}

/// The rules in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRules {
    /// The table's name.
    pub table: &'static str,
    /// Rules of this mode in it.
    pub total: usize,
    /// Rules that this sync wrote.
    pub written: usize,
}
