//! The door to the kernel: listing our table, committing a transaction, forgetting clients and flows.

use crate::diff::Transaction;
use crate::table::{ChainBody, Table};
use portway_flows::Tracker;
use portway_netlink::conntrack::{Filter, Flow};
use portway_netlink::nft::object::{SET_ANONYMOUS, SET_DYNAMIC};
use portway_netlink::nft::{Batch, Element, Family, list};
use portway_netlink::{Error, Protocol, Result, Socket};
use std::net::IpAddr;

/// What the mode needs from a kernel. The real one is [`Netlink`]; [`crate::fake::Fake`] stands in for it.
pub trait Kernel: Tracker {
    /// Our table as the kernel holds it, normalized; none if there is none.
    fn list(&mut self) -> Result<Option<Table>>;
    /// Does it all or nothing.
    fn commit(&mut self, tx: &Transaction) -> Result<()>;
    /// The first feature it lacks, and the option that brings it: asked once something was refused.
    fn lacks(&mut self) -> Option<(&'static str, &'static str)>;
}

/// About what an element with its headers takes in a message.
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

    /// The port our changes come from.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    fn tracker(&mut self) -> portway_flows::Kernel<'_> {
        portway_flows::Kernel { v6: self.family == Family::Ipv6, socket: &mut self.socket }
    }

    /// The socket, for what else is asked of netfilter.
    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }
}

impl Netlink {
    /// What our table holds, and how many chains and sets that are.
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
        // Anonymous sets belong to rules of other programs, and are removed with them.
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
            // Dormant, or with counters, flowtables and other objects of another program.
            Ok((table, objects)) => {
                Ok(Some(Table { odd: info.flags != 0 || info.objects != objects, ..table }))
            }
            // Something we have no words for, which is therefore not ours.
            Err(Error::Malformed { .. }) => Ok(Some(Table { odd: true, ..Table::default() })),
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

    fn lacks(&mut self) -> Option<(&'static str, &'static str)> {
        crate::probe::missing(self.family)
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

/// Turns the kernel's refusal into words about what it lacks, if that is what it is.
pub(crate) fn diagnose(
    family: Family,
    error: Error,
    lacks: impl FnOnce() -> Option<(&'static str, &'static str)>,
) -> portway_dataplane::Error {
    let model = match family {
        Family::Ipv4 => portway_model::Family::V4,
        Family::Ipv6 => portway_model::Family::V6,
    };
    if error.is_permission() {
        let operation = "change nftables rules".to_owned();
        return portway_dataplane::Error::Permission { operation, source: error.into() };
    }
    const LACKING: [i32; 6] = [2, 22, 93, 94, 95, 97];
    if error.errno().is_some_and(|e| LACKING.contains(&e))
        && let Some((feature, option)) = lacks()
    {
        return portway_dataplane::Error::Unsupported {
            feature: feature.to_owned(),
            hint: format!(
                "load or build {option}; Linux 5.10 or later with it is needed for the nftables mode"
            ),
        };
    }
    portway_dataplane::Error::Kernel { family: model, source: error.into() }
}
