//! A kernel in memory, for tests without privileges and for injected faults.
//!
//! It applies a [`Transaction`] as the kernel does: operation by operation to a copy, which replaces the table if all
//! operations succeed. It returns the kernel's errors: a missing object cannot be used or deleted (`ENOENT`), an
//! existing one cannot be added with another definition (`EEXIST`), an object in use cannot be deleted (`EBUSY`), and
//! a rule must be allowed at every hook that it is reached from (`validate`).

mod apply;
mod validate;

#[cfg(test)]
mod tests;

use crate::commit::Kernel;
use crate::diff::Transaction;
use crate::table::Table;
use portway_flows::Tracker;
use portway_netlink::conntrack::{Filter, Flow};
use portway_netlink::nft::object::SET_DYNAMIC;
use portway_netlink::nft::{Element, Key};
use portway_netlink::{Error, Result};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The object does not exist.
pub const ENOENT: i32 = 2;
/// The object is in use.
pub const EBUSY: i32 = 16;
/// The object exists already.
pub const EEXIST: i32 = 17;
/// The request is invalid.
pub const EINVAL: i32 = 22;
/// Jumps are nested too deep.
pub const EMLINK: i32 = 31;
/// Jumps form a loop.
pub const ELOOP: i32 = 40;
/// The operation is not supported at this hook.
pub const EOPNOTSUPP: i32 = 95;
/// The kernel is out of buffers.
pub const ENOBUFS: i32 = 105;

/// An injected fault of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refuses the transaction with this errno.
    Refuse(i32),
    /// The kernel applies the transaction, but its answer is lost.
    LoseAnswer,
}

/// A kernel with one table, conntrack entries and addresses.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    table: Option<Table>,
    faults: BTreeMap<usize, Fault>,
    commits: usize,
    last: Transaction,
    /// Conntrack entries.
    pub flows: Vec<Flow>,
    /// The addresses of the node.
    pub addresses: Vec<IpAddr>,
}

impl Fake {
    /// The table, with the elements of dynamic sets.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// The table, for tests that change it as another process would.
    pub fn table_mut(&mut self) -> &mut Option<Table> {
        &mut self.table
    }

    /// Injects a fault into the `nth` commit from now on; the next one is the first.
    pub fn fail(&mut self, nth: usize, fault: Fault) {
        self.faults.insert(self.commits + nth, fault);
    }

    /// The number of commits so far, including failed ones.
    pub fn commits(&self) -> usize {
        self.commits
    }

    /// The last transaction that was committed.
    pub fn last(&self) -> &Transaction {
        &self.last
    }

    /// Adds a client to a dynamic set, as a rule would.
    pub fn remember(&mut self, set: &str, client: IpAddr) {
        let client = match client {
            IpAddr::V4(ip) => Key::copy(&ip.octets()),
            IpAddr::V6(ip) => Key::copy(&ip.octets()),
        };
        if let (Some(table), Ok(client)) = (&mut self.table, client) {
            let list = table.elements.entry(set.into()).or_default();
            list.retain(|e| e.key != client);
            list.push(Element::key(client));
            table.normalize();
        }
    }
}

impl Kernel for Fake {
    fn list(&mut self) -> Result<Option<Table>> {
        let mut table = self.table.clone();
        if let Some(table) = &mut table {
            let sets = &table.sets;
            table.elements.retain(|name, _| sets.get(name).is_some_and(|s| s.flags & SET_DYNAMIC == 0));
            table.normalize();
        }
        Ok(table)
    }

    fn commit(&mut self, tx: &Transaction) -> Result<()> {
        self.commits += 1;
        let fault = self.faults.remove(&self.commits);
        if let Some(Fault::Refuse(errno)) = fault {
            return Err(refused(errno, "commit (injected fault)"));
        }
        let mut next = self.table.clone();
        apply::apply(&mut next, tx)?;
        self.table = next;
        self.last = tx.clone();
        match fault {
            Some(_) => Err(Error::NoAnswer("the transaction".to_owned())),
            None => Ok(()),
        }
    }

    fn missing_feature(&mut self) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// The error for a request that the kernel refused.
fn refused(errno: i32, operation: impl Into<String>) -> Error {
    let source = std::io::Error::from_raw_os_error(errno);
    Error::Refused { operation: operation.into(), source, detail: None }
}

impl Tracker for Fake {
    fn flows(&mut self, filter: Filter) -> Result<Vec<Flow>> {
        let at = |f: &Flow| (f.original.destination, f.original.destination_port);
        let matches = |f: &&Flow| {
            f.original.protocol == filter.protocol && filter.destination.is_none_or(|d| d == at(f))
        };
        Ok(self.flows.iter().filter(matches).copied().collect())
    }

    fn delete_flow(&mut self, flow: &Flow) -> Result<bool> {
        let before = self.flows.len();
        self.flows.retain(|f| f != flow);
        Ok(self.flows.len() < before)
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>> {
        Ok(self.addresses.clone())
    }
}
