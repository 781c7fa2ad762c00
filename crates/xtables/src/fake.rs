//! A kernel and its tool as a value: for tests without privileges, and for faults that real ones have only on bad days.
//!
//! It reads a script as `iptables-restore --noflush` does: line by line into a copy of a table, which takes the table's
//! place at `COMMIT`. It is as strict: a rule that is not there cannot be deleted, a jump needs a chain to jump to, a
//! chain that has rules or is led to cannot go, and what makes no sense in a table is refused. It fails as the tool
//! does: at a line, with nothing of that table changed, while tables that were committed before stay; and it closes
//! the pipe before the whole script is written.

mod session;
mod tables;

#[cfg(test)]
mod tests;

pub use tables::{Content, Tables};

use crate::chains::{Chain, Table};
use crate::commit::{Failure, Kernel, Writer};
use crate::listing::target;
use crate::variant::Variant;
use portway_flows::Tracker;
use portway_model::Family;
use portway_netlink::Result as NetlinkResult;
use portway_netlink::conntrack::{Filter, Flow};
use session::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// What goes wrong with a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused, at no line in particular, and nothing is done.
    Refuse,
    /// The tool is killed when it has read so many lines; what was committed by then stays. If the script is shorter,
    /// all of it is done, and only the answer is lost.
    DieAfter(usize),
}

/// A kernel with tables in it, and the tool that changes them.
#[derive(Clone, Debug)]
pub struct Fake {
    family: Family,
    variant: Variant,
    tables: Tables,
    faults: BTreeMap<usize, Fault>,
    refuses: BTreeSet<String>,
    locked: usize,
    deaf: usize,
    restores: usize,
    last: String,
    /// Tables that the tool says it cannot show.
    pub opaque: BTreeSet<Table>,
    /// What the kernel counts; none if it cannot count.
    pub counts: Option<BTreeSet<String>>,
    /// Whether packets to 127.0.0.1 may be routed.
    pub route_localnet: Option<bool>,
    /// Tracked flows.
    pub flows: Vec<Flow>,
    /// The machine's addresses.
    pub addresses: Vec<IpAddr>,
}

impl Fake {
    /// One in which nothing was ever done.
    pub fn new(family: Family, variant: Variant) -> Fake {
        Fake {
            family,
            variant,
            tables: Tables::default(),
            faults: BTreeMap::new(),
            refuses: BTreeSet::new(),
            locked: 0,
            deaf: 0,
            restores: 0,
            last: String::new(),
            opaque: BTreeSet::new(),
            counts: Some(BTreeSet::new()),
            route_localnet: Some(false),
            flows: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// What it holds.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The tables, for tests that tamper with them.
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// Another program runs a script: its errors come back, and no fault is injected.
    pub fn run(&mut self, script: &str) -> Result<(), Failure> {
        let mut session = Session::new(self.family, &mut self.tables);
        io::Write::write_all(&mut session, script.as_bytes()).ok();
        session.finish().1
    }

    /// Has the `nth` restore from now on go wrong; the next one is the first.
    pub fn fail(&mut self, nth: usize, fault: Fault) {
        self.faults.insert(self.restores + nth, fault);
    }

    /// Refuses every line that has this text in it.
    pub fn refuse(&mut self, text: &str) {
        self.refuses.insert(text.to_owned());
    }

    /// Another program holds the lock during the next `n` restores.
    pub fn lock(&mut self, n: usize) {
        self.locked = n;
    }

    /// The next `n` listings break off.
    pub fn fail_saves(&mut self, n: usize) {
        self.deaf = n;
    }

    /// Nothing goes wrong any more.
    pub fn recover(&mut self) {
        self.faults.clear();
        self.refuses.clear();
        (self.locked, self.deaf) = (0, 0);
    }

    /// How many restores there were, with those that went wrong.
    pub fn restores(&self) -> usize {
        self.restores
    }

    /// The last script, as far as it was read.
    pub fn last(&self) -> &str {
        &self.last
    }

    fn listing(&self) -> Vec<String> {
        let of_table = |(table, content): (&Table, &Content)| {
            if self.opaque.contains(table) {
                return vec![format!("# Table `{table}' is incompatible, use 'nft' tool.")];
            }
            content.lines(*table)
        };
        self.tables.0.iter().flat_map(of_table).collect()
    }
}

fn program(what: &str) -> String {
    format!("iptables-{what}")
}

fn killed(what: &str) -> Failure {
    Failure::Died { program: program(what), status: ExitStatus::from_raw(9), message: String::new() }
}

impl Kernel for Fake {
    fn save(&mut self, each: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        let lines = self.listing();
        if self.deaf > 0 {
            self.deaf -= 1;
            lines[..lines.len() / 2].iter().for_each(|line| each(line));
            return Err(killed("save"));
        }
        lines.iter().for_each(|line| each(line));
        Ok(())
    }

    fn restore(&mut self, write: &mut Writer<'_>) -> Result<(), Failure> {
        self.restores += 1;
        let fault = self.faults.remove(&self.restores);
        if self.locked > 0 {
            self.locked -= 1;
            let message = "Another app is currently holding the xtables lock.".to_owned();
            return Err(Failure::Locked { holder: None, message });
        }
        if fault == Some(Fault::Refuse) {
            let message = "Resource temporarily unavailable".to_owned();
            return Err(Failure::Refused { program: program("restore"), line: None, message });
        }
        let mut session = Session::new(self.family, &mut self.tables);
        session.is_rash = self.variant == Variant::Nft;
        session.refuses.clone_from(&self.refuses);
        session.dies_after = match fault {
            Some(Fault::DieAfter(lines)) => Some(lines),
            _ => None,
        };
        // Writing on after the tool has stopped reading fails; the reason is in its message.
        let written = write(&mut session);
        let (read, outcome) = session.finish();
        self.last = read;
        outcome?;
        match written {
            Ok(_) => Ok(()),
            Err(source) => Err(Failure::Io { program: program("restore"), source }),
        }
    }

    fn looks_at_all(&self) -> bool {
        self.variant == Variant::Nft
    }

    fn jumps(&mut self, table: Table, chain: &Chain) -> Option<Vec<String>> {
        if self.variant == Variant::Legacy {
            return None;
        }
        let rules = self.tables.rules(table, &chain.to_string()).unwrap_or_default();
        Some(rules.iter().filter_map(|r| target(r)).map(str::to_owned).collect())
    }

    fn show(&mut self, table: Table, chains: &[Chain]) -> Option<Vec<String>> {
        if self.variant == Variant::Legacy {
            return None;
        }
        let rules = |chain: &Chain| {
            let rules = self.tables.rules(table, &chain.to_string()).unwrap_or_default();
            rules.iter().map(|r| format!("-A {chain}{r}")).collect::<Vec<_>>()
        };
        Some(chains.iter().flat_map(rules).collect())
    }

    fn count(&mut self, name: &str) -> bool {
        self.counts.as_mut().map(|counts| counts.insert(name.to_owned())).is_some()
    }

    fn uncount(&mut self, name: &str) {
        let text = format!("--nfacct-name {name}");
        let mut rules = self.tables.0.values().flat_map(|c| c.chains.values().flatten());
        if let Some(counts) = &mut self.counts
            && !rules.any(|rule| rule.contains(&text))
        {
            counts.remove(name);
        }
    }

    fn route_localnet(&mut self) -> Option<bool> {
        self.route_localnet
    }

    fn set_route_localnet(&mut self, on: bool) -> io::Result<()> {
        match &mut self.route_localnet {
            Some(now) => *now = on,
            None => return Err(io::ErrorKind::PermissionDenied.into()),
        }
        Ok(())
    }
}

impl Tracker for Fake {
    fn flows(&mut self, filter: Filter) -> NetlinkResult<Vec<Flow>> {
        let at = |f: &Flow| (f.original.destination, f.original.destination_port);
        let matches = |f: &&Flow| {
            f.original.protocol == filter.protocol && filter.destination.is_none_or(|d| d == at(f))
        };
        Ok(self.flows.iter().filter(matches).copied().collect())
    }

    fn delete_flow(&mut self, flow: &Flow) -> NetlinkResult<bool> {
        let before = self.flows.len();
        self.flows.retain(|f| f != flow);
        Ok(self.flows.len() < before)
    }

    fn addresses(&mut self) -> NetlinkResult<Vec<IpAddr>> {
        Ok(self.addresses.clone())
    }
}
