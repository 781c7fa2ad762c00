//! A kernel and its tool in memory, for tests without privileges and for injected faults.
//!
//! It applies a script as `iptables-restore --noflush` does: line by line to a copy of a table, which replaces the
//! table at `COMMIT`. It refuses the same operations as the tool: the deletion of a rule that does not exist, a jump
//! to a chain that does not exist, the removal of a chain that has rules or that a rule refers to, and a target that
//! is not allowed in the table. It fails as the tool does: at a line, after which that table is unchanged, tables that
//! were committed before stay changed, and the pipe is closed before the whole script is written.

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

/// An injected fault of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The tool refuses the script without naming a line, and changes nothing.
    Refuse,
    /// The tool is killed when it has read this many lines; tables that were committed by then stay changed. If the
    /// script is shorter, all of it is applied, and only the exit status is lost.
    DieAfter(usize),
}

/// A kernel with tables, and the tool that changes them.
#[derive(Clone, Debug)]
pub struct Fake {
    family: Family,
    variant: Variant,
    tables: Tables,
    faults: BTreeMap<usize, Fault>,
    refused_texts: BTreeSet<String>,
    locked_restores: usize,
    failing_saves: usize,
    restores: usize,
    last: String,
    /// Tables that the tool cannot list.
    pub opaque: BTreeSet<Table>,
    /// Named counters; `None` if the kernel has no nfacct.
    pub counters: Option<BTreeSet<String>>,
    /// The sysctl `route_localnet`; `None` if it cannot be read or set.
    pub route_localnet: Option<bool>,
    /// Conntrack entries.
    pub flows: Vec<Flow>,
    /// The addresses of the node.
    pub addresses: Vec<IpAddr>,
}

impl Fake {
    /// A kernel without tables.
    pub fn new(family: Family, variant: Variant) -> Fake {
        Fake {
            family,
            variant,
            tables: Tables::default(),
            faults: BTreeMap::new(),
            refused_texts: BTreeSet::new(),
            locked_restores: 0,
            failing_saves: 0,
            restores: 0,
            last: String::new(),
            opaque: BTreeSet::new(),
            counters: Some(BTreeSet::new()),
            route_localnet: Some(false),
            flows: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// The tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The tables, for tests that change them as another process would.
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// Runs a script of another program. No fault is injected, and the run is not counted.
    pub fn run(&mut self, script: &str) -> Result<(), Failure> {
        let mut session = Session::new(self.family, &mut self.tables);
        io::Write::write_all(&mut session, script.as_bytes()).ok();
        session.finish().1
    }

    /// Injects a fault into the `nth` restore from now on; the next one is the first.
    pub fn fail(&mut self, nth: usize, fault: Fault) {
        self.faults.insert(self.restores + nth, fault);
    }

    /// Refuses every line that contains this text from now on.
    pub fn refuse(&mut self, text: &str) {
        self.refused_texts.insert(text.to_owned());
    }

    /// Another program holds the lock during the next `n` restores.
    pub fn lock(&mut self, n: usize) {
        self.locked_restores = n;
    }

    /// Injects a fault into the next `n` listings: the tool is killed halfway.
    pub fn fail_saves(&mut self, n: usize) {
        self.failing_saves = n;
    }

    /// Removes all injected faults.
    pub fn recover(&mut self) {
        self.faults.clear();
        self.refused_texts.clear();
        (self.locked_restores, self.failing_saves) = (0, 0);
    }

    /// The number of restores so far, including failed ones.
    pub fn restores(&self) -> usize {
        self.restores
    }

    /// The last script, as far as the tool read it.
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

fn program(suffix: &str) -> String {
    format!("iptables-{suffix}")
}

fn killed(suffix: &str) -> Failure {
    Failure::Died { program: program(suffix), status: ExitStatus::from_raw(9), message: String::new() }
}

impl Kernel for Fake {
    fn save(&mut self, each: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        let lines = self.listing();
        if self.failing_saves > 0 {
            self.failing_saves -= 1;
            lines[..lines.len() / 2].iter().for_each(|line| each(line));
            return Err(killed("save"));
        }
        lines.iter().for_each(|line| each(line));
        Ok(())
    }

    fn restore(&mut self, write: &mut Writer<'_>) -> Result<(), Failure> {
        self.restores += 1;
        let fault = self.faults.remove(&self.restores);
        if self.locked_restores > 0 {
            self.locked_restores -= 1;
            let message = "Another app is currently holding the xtables lock.".to_owned();
            return Err(Failure::Locked { holder: None, message });
        }
        if fault == Some(Fault::Refuse) {
            let message = "Resource temporarily unavailable".to_owned();
            return Err(Failure::Refused { program: program("restore"), line: None, message });
        }
        let mut session = Session::new(self.family, &mut self.tables);
        session.assumes_builtin_chains = self.variant == Variant::Nft;
        session.refused_texts.clone_from(&self.refused_texts);
        session.dies_after = match fault {
            Some(Fault::DieAfter(lines)) => Some(lines),
            _ => None,
        };
        // Writing fails after the tool has stopped reading; the reason is in its message.
        let written = write(&mut session);
        let (read, outcome) = session.finish();
        self.last = read;
        outcome?;
        match written {
            Ok(_) => Ok(()),
            Err(source) => Err(Failure::Io { program: program("restore"), source }),
        }
    }

    fn needs_listing(&self) -> bool {
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

    fn create_counter(&mut self, name: &str) -> bool {
        self.counters.as_mut().map(|counters| counters.insert(name.to_owned())).is_some()
    }

    fn delete_counter(&mut self, name: &str) {
        let text = format!("--nfacct-name {name}");
        let mut rules = self.tables.0.values().flat_map(|c| c.chains.values().flatten());
        if let Some(counters) = &mut self.counters
            && !rules.any(|rule| rule.contains(&text))
        {
            counters.remove(name);
        }
    }

    fn route_localnet(&mut self) -> Option<bool> {
        self.route_localnet
    }

    fn set_route_localnet(&mut self, on: bool) -> io::Result<()> {
        match &mut self.route_localnet {
            Some(current) => *current = on,
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
