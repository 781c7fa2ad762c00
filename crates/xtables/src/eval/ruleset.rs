//! The rules of all tables, parsed from text: the output of `iptables-save`, or the wanted rules of a mode.

use crate::chains::{Chain, Table};
use crate::listing::canonical;
use crate::rules::Rule;
use std::collections::HashMap;

/// The rules of the tables that modes use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    chains: HashMap<(Table, Chain), Vec<Line>>,
    /// Built-in chains with the policy DROP.
    dropping: Vec<(Table, Chain)>,
}

/// A rule as text, and as a value if it can be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The text after `-A CHAIN`.
    pub(super) text: String,
    pub(super) rule: Option<Rule>,
}

impl Ruleset {
    /// Parses the output of `iptables-save` or of [`crate::Engine::wanted`]. Other tables and commands are skipped.
    pub fn parse(text: &str) -> Ruleset {
        let mut rules = Ruleset::default();
        let mut table = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::parse(name);
            }
            let Some(table) = table else { continue };
            let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (chain, rule) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
            match command {
                "-A" | "-I" => rules.add(table, Chain::parse(chain), rule, command == "-I"),
                _ => {
                    if let Some(name) = command.strip_prefix(':').filter(|_| chain == "DROP") {
                        rules.dropping.push((table, Chain::parse(name)));
                    }
                }
            }
        }
        rules
    }

    fn add(&mut self, table: Table, chain: Chain, text: &str, first: bool) {
        let line = Line { text: canonical(text), rule: Rule::parse(text) };
        let lines = self.chains.entry((table, chain)).or_default();
        lines.insert(if first { 0 } else { lines.len() }, line);
    }

    /// The rules of a chain; none if the chain does not exist.
    pub(super) fn lines(&self, table: Table, chain: &Chain) -> &[Line] {
        self.chains.get(&(table, chain.clone())).map_or(&[], Vec::as_slice)
    }

    /// Whether a built-in chain has the policy DROP.
    pub(super) fn drops(&self, table: Table, chain: &Chain) -> bool {
        self.dropping.contains(&(table, chain.clone()))
    }
}
