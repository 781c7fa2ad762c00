//! The input of `iptables-restore`, and the Service of each line.
//!
//! A script is written straight into the tool, for with thousands of Services it is tens of megabytes long. All that
//! is kept is at which line each Service's lines begin, to name the one behind a line that was refused.

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
    /// Something changes in the section that is open.
    changes: bool,
    tally: Tally,
}

/// What a script comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many transactions it makes.
    pub sections: usize,
    /// How many rules it adds to each table, in the order of [`Table::ALL`].
    pub rules: [usize; 3],
}

/// At which line the lines of each Service begin; none stands for what belongs to no Service.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<(usize, Option<ServiceName>)>);

impl Origins {
    /// The Service of a line.
    pub fn of(&self, line: usize) -> Option<&ServiceName> {
        let behind = self.0.partition_point(|(first, _)| *first <= line);
        self.0[..behind].last().and_then(|(_, origin)| origin.as_ref())
    }
}

impl<'o, W: Write> Script<'o, W> {
    /// Begins a script. The Service of each line is recorded while it is written, since writing may be cut short.
    pub fn new(out: W, origins: &'o mut Origins) -> Script<'o, W> {
        *origins = Origins::default();
        Script { out, line: 0, origins, table: Table::Nat, changes: false, tally: Tally::default() }
    }

    /// Ends it.
    pub fn finish(mut self) -> Result<Tally> {
        self.out.flush()?;
        Ok(self.tally)
    }

    /// The lines that follow belong to this Service, or to none.
    pub fn origin(&mut self, service: Option<&ServiceName>) {
        let last = self.origins.0.last().and_then(|(_, origin)| origin.as_ref());
        if last != service {
            self.origins.0.push((self.line + 1, service.cloned()));
        }
    }

    /// Begins a table's changes.
    pub fn begin(&mut self, table: Table) -> Result<()> {
        self.origin(None);
        self.table = table;
        self.write(format_args!("*{table}"))?;
        self.changes = false;
        Ok(())
    }

    /// Ends them: all are made, or none.
    pub fn commit(&mut self) -> Result<()> {
        self.origin(None);
        self.tally.sections += usize::from(self.changes);
        self.write("COMMIT")
    }

    /// Goes on in a section of its own, if something changes in this one already.
    pub fn part(&mut self) -> Result<()> {
        if !self.changes {
            return Ok(());
        }
        self.commit()?;
        self.begin(self.table)
    }

    /// Makes a chain, or empties it.
    pub fn declare(&mut self, chain: impl Display) -> Result<()> {
        self.write(format_args!(":{chain} - [0:0]"))
    }

    /// Adds a rule at the end.
    pub fn append(&mut self, chain: impl Display, rule: &Rule) -> Result<()> {
        self.tally.rules[self.table as usize] += 1;
        self.write(format_args!("-A {chain}{rule}"))
    }

    /// Adds a rule at the beginning.
    pub fn insert(&mut self, chain: impl Display, rule: &Rule) -> Result<()> {
        self.tally.rules[self.table as usize] += 1;
        self.write(format_args!("-I {chain}{rule}"))
    }

    /// Removes a rule.
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

    /// Has the tool look at the whole table first. The nf_tables variant otherwise keeps a list of the chains that a
    /// script names, sorted, and walks it for every line: with 24,000 chains that was 11 s to a minute, by their order, instead of 3 s.
    pub fn look_at_all(&mut self) -> Result<()> {
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
    fn every_line_has_its_origin() {
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
        let whose: Vec<_> = (1..=6).map(|line| origins.of(line).cloned()).collect();
        assert_eq!(whose, [None, Some(a.clone()), Some(a), Some(b.clone()), Some(b), None]);
    }
}
