//! Rules as text becomes them: what `iptables-save` prints, or what the mode wants.

use crate::chains::{Chain, Table};
use crate::listing::canonical;
use crate::rules::Rule;
use std::collections::HashMap;

/// The rules of all tables that we look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    chains: HashMap<(Table, Chain), Vec<Line>>,
    /// Built-in chains at whose end packets are dropped.
    dropping: Vec<(Table, Chain)>,
}

/// A rule, as far as we have words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// What is behind `-A CHAIN`.
    pub(super) text: String,
    pub(super) rule: Option<Rule>,
}

impl Ruleset {
    /// Reads what `iptables-save` prints, or [`crate::Engine::wanted`]. Tables and commands that do not concern us are
    /// passed over.
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

    /// The rules of a chain; one that is not there has none.
    pub(super) fn lines(&self, table: Table, chain: &Chain) -> &[Line] {
        self.chains.get(&(table, chain.clone())).map_or(&[], Vec::as_slice)
    }

    /// Whether a built-in chain drops what comes to its end.
    pub(super) fn drops(&self, table: Table, chain: &Chain) -> bool {
        self.dropping.contains(&(table, chain.clone()))
    }
}
