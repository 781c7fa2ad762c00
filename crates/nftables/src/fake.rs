//! A kernel that is a value: for tests without privileges, and for faults that a real one has only on bad days.
//!
//! It takes a [`Transaction`] as the real one does: operation by operation on a copy, which takes the place of the
//! table once all have succeeded. It is as strict: what is not there cannot be deleted (`ENOENT`), what is there
//! cannot be made again as something else (`EEXIST`), what is in use cannot go (`EBUSY`), and rules must make sense
//! where they are reached (`validate`).

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

/// `errno` of what is not there.
pub const ENOENT: i32 = 2;
/// `errno` of what is in use.
pub const EBUSY: i32 = 16;
/// `errno` of what is there already.
pub const EEXIST: i32 = 17;
/// `errno` of what makes no sense.
pub const EINVAL: i32 = 22;
/// `errno` of jumps that nest too deep.
pub const EMLINK: i32 = 31;
/// `errno` of jumps in a circle.
pub const ELOOP: i32 = 40;
/// `errno` of what cannot be done here.
pub const EOPNOTSUPP: i32 = 95;
/// `errno` of a kernel that is out of buffers.
pub const ENOBUFS: i32 = 105;

/// What goes wrong with a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused with this errno, and nothing is done.
    Refuse(i32),
    /// It is done, but the answer is lost.
    LoseAnswer,
}

/// A kernel with our table in it.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    table: Option<Table>,
    faults: BTreeMap<usize, Fault>,
    commits: usize,
    last: Transaction,
    /// Tracked flows.
    pub flows: Vec<Flow>,
    /// The machine's addresses.
    pub addresses: Vec<IpAddr>,
}

impl Fake {
    /// The table, with what its dynamic maps remember.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_ref()
    }

    /// The table, for tests that tamper with it.
    pub fn table_mut(&mut self) -> &mut Option<Table> {
        &mut self.table
    }

    /// Has the `nth` commit from now on go wrong; the next one is the first.
    pub fn fail(&mut self, nth: usize, fault: Fault) {
        self.faults.insert(self.commits + nth, fault);
    }

    /// How many commits there were, with those that went wrong.
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
            return Err(refused(errno, "do anything at all"));
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

    fn lacks(&mut self) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// A refusal as the kernel gives it.
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
