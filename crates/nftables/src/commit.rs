//! Access to the kernel over netlink: lists the table, commits transactions, and lists and deletes conntrack entries.

use crate::diff::Transaction;
use crate::table::{ChainBody, Table};
use portway_flows::Tracker;
use portway_netlink::conntrack::{Filter, Flow};
use portway_netlink::nft::object::{SET_ANONYMOUS, SET_DYNAMIC};
use portway_netlink::nft::{Batch, Element, Family, list};
use portway_netlink::{Error, Protocol, Result, Socket};
use std::net::IpAddr;

/// The operations of a kernel that the mode uses. [`Netlink`] is the real kernel, [`crate::fake::Fake`] one for tests.
pub trait Kernel: Tracker {
    /// The table as listed from the kernel, normalized; `None` if it does not exist.
    fn list(&mut self) -> Result<Option<Table>>;
    /// Applies the whole transaction, or nothing of it.
    fn commit(&mut self, tx: &Transaction) -> Result<()>;
    /// The first missing feature, and the kernel option that provides it. Called after the kernel refused a request.
    fn missing_feature(&mut self) -> Option<(&'static str, &'static str)>;
}

/// The approximate size of an element in a netlink message.
const ELEMENT_BYTES: usize = 56;

/// A table in this network namespace, through netlink.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    family: Family,
    table: String,
}

impl Netlink {
    /// Opens a socket in this thread's network namespace.
    pub fn open(family: Family, table: &str) -> Result<Netlink> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        socket.allow_large_batches();
        Ok(Netlink { socket, family, table: table.to_owned() })
    }

    /// The netlink port of the socket.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    fn tracker(&mut self) -> portway_flows::Kernel<'_> {
        portway_flows::Kernel { v6: self.family == Family::Ipv6, socket: &mut self.socket }
    }

    /// The socket, for other requests to netfilter.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }
}

impl Netlink {
    /// The contents of the table, and its number of chains and sets.
    fn contents(&mut self) -> Result<(Table, u32)> {
        let (socket, family, name) = (&mut self.socket, self.family, self.table.as_str());
        let mut table = Table::default();
        for chain in list::chains(socket, family, name)? {
            table.chains.insert(chain.name, ChainBody { hook: chain.hook, rules: Vec::new() });
        }
        for (chain, rules) in list::rules(socket, family, name)? {
            table.chains.entry(chain).or_default().rules = rules;
        }
        let sets = list::sets(socket, family, name)?;
        let objects = (table.chains.len() + sets.len()) as u32;
        // Anonymous sets belong to rules of other programs, and are deleted with those rules.
        for set in sets.into_iter().filter(|s| s.flags & SET_ANONYMOUS == 0) {
            table.sets.insert(set.name.clone(), set);
        }
        for set in table.sets.values().filter(|s| s.flags & SET_DYNAMIC == 0) {
            let elements: Vec<Element> = list::elements(socket, family, name, &set.name)?;
            table.elements.insert(set.name.clone(), elements);
        }
        table.normalize();
        Ok((table, objects))
    }
}

impl Kernel for Netlink {
    fn list(&mut self) -> Result<Option<Table>> {
        let tables = list::tables(&mut self.socket, self.family)?;
        let Some(info) = tables.into_iter().find(|t| t.name == self.table) else { return Ok(None) };
        match self.contents() {
            // A flag, such as dormant, or counters, flowtables and other objects that another program added.
            Ok((table, objects)) => {
                Ok(Some(Table { needs_rebuild: info.flags != 0 || info.objects != objects, ..table }))
            }
            // An object that the listing cannot decode, so another program added it.
            Err(Error::Malformed { .. }) => Ok(Some(Table { needs_rebuild: true, ..Table::default() })),
            Err(e) => Err(e),
        }
    }

    fn commit(&mut self, tx: &Transaction) -> Result<()> {
        let elements: usize = tx.add.values().chain(tx.delete.values()).map(Vec::len).sum();
        let mut batch = Batch::with_capacity(self.family, &self.table, elements * ELEMENT_BYTES);
        if tx.rebuild {
            batch.delete_table();
        }
        if tx.add_table {
            batch.add_table();
        }
        tx.add_sets.iter().for_each(|s| batch.add_set(s));
        tx.add_chains.iter().for_each(|c| batch.add_chain(c));
        tx.flush_chains.iter().for_each(|c| batch.flush_chain(c));
        tx.delete.iter().for_each(|(set, elements)| batch.delete_elements(set, elements));
        for (chain, rules) in &tx.add_rules {
            rules.iter().for_each(|r| batch.add_rule(chain, r));
        }
        tx.add.iter().for_each(|(set, elements)| batch.add_elements(set, elements));
        tx.delete_sets.iter().for_each(|s| batch.delete_set(s));
        tx.delete_chains.iter().for_each(|c| batch.delete_chain(c));
        batch.commit(&mut self.socket).map(drop)
    }

    fn missing_feature(&mut self) -> Option<(&'static str, &'static str)> {
        crate::probe::missing_feature(self.family)
    }
}

impl Tracker for Netlink {
    fn flows(&mut self, filter: Filter) -> Result<Vec<Flow>> {
        self.tracker().flows(filter)
    }

    fn delete_flow(&mut self, flow: &Flow) -> Result<bool> {
        self.tracker().delete_flow(flow)
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>> {
        self.tracker().addresses()
    }
}

/// Converts an error of the kernel. If the errno may mean a missing feature, `missing_feature` is called to find it.
pub(crate) fn diagnose(
    family: Family,
    error: Error,
    missing_feature: impl FnOnce() -> Option<(&'static str, &'static str)>,
) -> portway_dataplane::Error {
    let model = match family {
        Family::Ipv4 => portway_model::Family::V4,
        Family::Ipv6 => portway_model::Family::V6,
    };
    if error.is_permission() {
        let operation = "change nftables rules".to_owned();
        return portway_dataplane::Error::Permission { operation, source: error.into() };
    }
    /// ENOENT, EINVAL, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EOPNOTSUPP, EAFNOSUPPORT.
    const MAYBE_UNSUPPORTED: [i32; 6] = [2, 22, 93, 94, 95, 97];
    if error.errno().is_some_and(|e| MAYBE_UNSUPPORTED.contains(&e))
        && let Some((feature, option)) = missing_feature()
    {
        return portway_dataplane::Error::Unsupported {
            feature: feature.to_owned(),
            hint: format!(
                "load or build {option}; the nftables mode needs Linux 5.10 or later with this option"
            ),
        };
    }
    portway_dataplane::Error::Kernel { family: model, source: error.into() }
}
