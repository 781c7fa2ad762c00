//! Writes the input of `iptables-restore`, and records the Service of each line.
//!
//! A script is written to the tool while it is rendered: with thousands of Services it has tens of megabytes. Only the
//! line numbers at which the lines of each Service begin are kept, to find the Service of a line that the tool refused.

use crate::chains::{Chain, Table};
use crate::rules::Rule;
use portway_model::ServiceName;
use std::fmt::Display;
use std::io::{Result, Write};

/// Writes a script.
#[derive(Debug)]
pub struct Script<'o, W> {
    out: W,
    line: usize,
    origins: &'o mut Origins,
    table: Table,
    /// The current section has changes.
    changes: bool,
    tally: Tally,
}

/// The size of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of sections with changes, each of which is one transaction.
    pub sections: usize,
    /// The number of rules that it adds to each table, in the order of [`Table::ALL`].
    pub rules: [usize; 3],
}

/// The line numbers at which the lines of each Service begin; `None` for lines that belong to no Service.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<(usize, Option<ServiceName>)>);

impl Origins {
    /// The Service of a line.
    pub fn of(&self, line: usize) -> Option<&ServiceName> {
        let count = self.0.partition_point(|(first, _)| *first <= line);
        self.0[..count].last().and_then(|(_, origin)| origin.as_ref())
    }
}

impl<'o, W: Write> Script<'o, W> {
    /// Begins a script. `origins` is borrowed, not returned at the end, because it is needed if writing fails.
    pub fn new(out: W, origins: &'o mut Origins) -> Script<'o, W> {
        *origins = Origins::default();
        Script { out, line: 0, origins, table: Table::Nat, changes: false, tally: Tally::default() }
    }

    /// Ends the script.
    pub fn finish(mut self) -> Result<Tally> {
        self.out.flush()?;
        Ok(self.tally)
    }

    /// Sets the Service of the following lines.
    pub fn origin(&mut self, service: Option<&ServiceName>) {
        let last = self.origins.0.last().and_then(|(_, origin)| origin.as_ref());
        if last != service {
            self.origins.0.push((self.line + 1, service.cloned()));
        }
    }

    /// Begins a section with changes of a table.
    pub fn begin(&mut self, table: Table) -> Result<()> {
        self.origin(None);
        self.table = table;
        self.write(format_args!("*{table}"))?;
        self.changes = false;
        Ok(())
    }

    /// Ends the section. The tool applies all of its changes, or none.
    pub fn commit(&mut self) -> Result<()> {
        self.origin(None);
        self.tally.sections += usize::from(self.changes);
        self.write("COMMIT")
    }

    /// Begins another section of the same table, if the current one has changes.
    pub fn split(&mut self) -> Result<()> {
        if !self.changes {
            return Ok(());
        }
        self.commit()?;
        self.begin(self.table)
    }

    /// Creates a chain, or empties it.
    pub fn declare(&mut self, chain: impl Display) -> Result<()> {
        self.write(format_args!(":{chain} - [0:0]"))
    }

    /// Adds a rule at the end of a chain.
    pub fn append(&mut self, chain: impl Display, rule: &Rule) -> Result<()> {
        self.tally.rules[self.table as usize] += 1;
        self.write(format_args!("-A {chain}{rule}"))
    }

    /// Adds a rule at the beginning of a chain.
    pub fn insert(&mut self, chain: impl Display, rule: &Rule) -> Result<()> {
        self.tally.rules[self.table as usize] += 1;
        self.write(format_args!("-I {chain}{rule}"))
    }

    /// Deletes a rule from a chain.
    pub fn delete(&mut self, chain: impl Display, rule: impl Display) -> Result<()> {
        self.write(format_args!("-D {chain}{rule}"))
    }

    /// Removes chains that may refer to one another.
    pub fn remove<'c>(&mut self, chains: impl IntoIterator<Item = &'c Chain> + Clone) -> Result<()> {
        for chain in chains.clone() {
            self.write(format_args!("-F {chain}"))?;
        }
        chains.into_iter().try_for_each(|chain| self.write(format_args!("-X {chain}")))
    }

    /// Lists the whole table (`-S`), so that the tool reads all chains at once. Otherwise the nf_tables variant keeps a
    /// sorted list of the chains that the script names, and walks it for every line: with 24,000 chains that took 11 s
    /// to a minute, depending on their order, instead of 3 s.
    pub fn list_table(&mut self) -> Result<()> {
        let changes = self.changes;
        self.write("-S")?;
        self.changes = changes;
        Ok(())
    }

    fn write(&mut self, line: impl Display) -> Result<()> {
        self.line += 1;
        self.changes = true;
        writeln!(self.out, "{line}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_of_every_line_is_found() {
        let (a, b) = (ServiceName::new("ns", "a"), ServiceName::new("ns", "b"));
        let mut origins = Origins::default();
        let mut script = Script::new(Vec::new(), &mut origins);
        script.begin(Table::Nat).unwrap();
        for service in [&a, &b] {
            script.origin(Some(service));
            script.declare("X").unwrap();
            script.declare("Y").unwrap();
        }
        script.commit().unwrap();
        assert_eq!(script.finish().unwrap().sections, 1);
        let services: Vec<_> = (1..=6).map(|line| origins.of(line).cloned()).collect();
        assert_eq!(services, [None, Some(a.clone()), Some(a), Some(b.clone()), Some(b), None]);
    }
}
