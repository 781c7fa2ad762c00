//! Applies a script to the tables, line by line.

use super::tables::{Content, Tables, builtin};
use super::{killed, program};
use crate::chains::Table;
use crate::commit::Failure;
use crate::listing::{canonical, target};
use crate::rules::{Action, Match, Refusal, Rule};
use ipnet::IpNet;
use portway_model::{Family, Protocol};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// The longest name of a chain (`XT_EXTENSION_MAXNAMELEN` without the final NUL).
const MAX_NAME_LEN: usize = 28;
/// Targets that are not chains, and the tables that they are allowed in.
const TARGETS: [(&str, &[Table]); 13] = [
    ("ACCEPT", &Table::ALL),
    ("RETURN", &Table::ALL),
    ("MARK", &Table::ALL),
    ("LOG", &Table::ALL),
    ("CONNMARK", &Table::ALL),
    ("DROP", &[Table::Filter, Table::Mangle]),
    ("REJECT", &[Table::Filter]),
    ("DNAT", &[Table::Nat]),
    ("SNAT", &[Table::Nat]),
    ("REDIRECT", &[Table::Nat]),
    ("MASQUERADE", &[Table::Nat]),
    ("TCPMSS", &[Table::Mangle]),
    // Other tables allow SET too, but `--map-mark`, the only use in this crate, only in this one.
    ("SET", &[Table::Mangle]),
];

/// A run of the tool.
pub(super) struct Session<'t> {
    family: Family,
    tables: &'t mut Tables,
    /// The table of the current section, with the changes so far.
    open: Option<(Table, Content)>,
    /// The lines that were read.
    script: String,
    line: usize,
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
    failure: Option<Failure>,
    /// Lines that contain one of these texts are refused.
    pub(super) refused_texts: BTreeSet<String>,
    /// The tool is killed when it has read this many lines.
    pub(super) dies_after: Option<usize>,
    /// After `-S`, the tool assumes that the built-in chains of the table exist, even if the table was never used
    /// (iptables-nft 1.8).
    pub(super) assumes_builtin_chains: bool,
    /// The current section has an `-S` with that effect.
    after_listing: bool,
}

type Step = Result<(), String>;

impl<'t> Session<'t> {
    pub(super) fn new(family: Family, tables: &'t mut Tables) -> Session<'t> {
        Session {
            family,
            tables,
            open: None,
            script: String::new(),
            line: 0,
            partial: Vec::new(),
            failure: None,
            refused_texts: BTreeSet::new(),
            dies_after: None,
            assumes_builtin_chains: false,
            after_listing: false,
        }
    }

    /// Ends the script. Returns the lines that were read, and the outcome.
    pub(super) fn finish(mut self) -> (String, Result<(), Failure>) {
        if self.failure.is_none() && self.open.is_some() {
            self.failure = Some(self.refused(format!("COMMIT expected at line {}", self.line + 1)));
        }
        if self.failure.is_none() && self.dies_after.is_some() {
            self.failure = Some(killed("restore"));
        }
        (self.script, self.failure.map_or(Ok(()), Err))
    }

    fn refused(&self, message: String) -> Failure {
        Failure::Refused { program: program("restore"), line: Some(self.line), message }
    }

    fn read(&mut self, line: &str) {
        if self.dies_after.is_some_and(|n| self.line >= n) {
            self.failure = Some(killed("restore"));
            return;
        }
        self.line += 1;
        self.script += line;
        self.script.push('\n');
        let step = match self.refused_texts.iter().find(|text| line.contains(*text)) {
            Some(text) => Err(format!("injected refusal of `{text}`")),
            None => self.step(line),
        };
        if let Err(message) = step {
            self.failure = Some(self.refused(message));
        }
    }

    fn step(&mut self, line: &str) -> Step {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let Some((table, content)) = &mut self.open else {
            let table = line.strip_prefix('*').and_then(Table::parse).ok_or("no table is selected")?;
            let content = self.tables.0.get(&table).cloned().unwrap_or_else(|| Content::new(table));
            self.open = Some((table, content));
            return Ok(());
        };
        let (command, rest) = line.split_at(line.find(' ').unwrap_or(line.len()));
        let rest = rest.strip_prefix(' ').unwrap_or_default();
        let (chain, rule) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
        match command {
            "COMMIT" => {
                self.tables.0.extend(self.open.take());
                self.after_listing = false;
                Ok(())
            }
            "-S" => {
                self.after_listing = self.assumes_builtin_chains;
                Ok(())
            }
            "-A" | "-I" => {
                check(self.family, *table, content, rule)?;
                let rules = content.chains.get_mut(chain).ok_or("No chain/target/match by that name")?;
                if self.after_listing && rules.is_empty() && builtin(*table).contains(&chain) {
                    return Err("No such file or directory".into());
                }
                let at = if command == "-I" { 0 } else { rules.len() };
                rules.insert(at, canonical(rule));
                Ok(())
            }
            "-D" => {
                const MISSING: &str = "Bad rule (does a matching rule exist in that chain?)";
                let rules = content.chains.get_mut(chain).ok_or(MISSING)?;
                let rule = canonical(rule);
                let at = rules.iter().position(|r| canonical(r) == rule).ok_or(MISSING)?;
                rules.remove(at);
                Ok(())
            }
            "-F" => {
                content.chains.get_mut(chain).ok_or("No chain/target/match by that name")?.clear();
                Ok(())
            }
            "-X" => remove(*table, content, chain),
            _ => match command.strip_prefix(':') {
                Some(name) => declare(*table, content, name, chain),
                None => Err(format!("unknown command `{command}'")),
            },
        }
    }
}

/// Creates or empties a chain, or sets the policy of a built-in chain.
fn declare(table: Table, content: &mut Content, name: &str, policy: &str) -> Step {
    if builtin(table).contains(&name) {
        if policy != "-" {
            content.policies.insert(name.to_owned(), policy.to_owned());
        }
        return Ok(());
    }
    if name.len() > MAX_NAME_LEN {
        return Err(format!("chain name `{name}' too long"));
    }
    content.chains.insert(name.to_owned(), Vec::new());
    Ok(())
}

fn remove(table: Table, content: &mut Content, chain: &str) -> Step {
    let rules = content.chains.get(chain).ok_or("No chain/target/match by that name")?;
    if builtin(table).contains(&chain) {
        return Err("the chain is built in".into());
    }
    if !rules.is_empty() {
        return Err("Directory not empty".into());
    }
    if content.references(chain) > 0 {
        return Err("Too many links".into());
    }
    content.chains.remove(chain);
    Ok(())
}

/// Whether a rule is allowed in a table.
fn check(family: Family, table: Table, content: &Content, text: &str) -> Step {
    if let Some(name) = target(text) {
        let chain = content.chains.contains_key(name) && !builtin(table).contains(&name);
        let known = TARGETS.iter().find(|(target, _)| *target == name);
        match known {
            Some((_, tables)) if !tables.contains(&table) => {
                return Err(format!("{name} is not allowed in table {table}"));
            }
            None if !chain => return Err(format!("Couldn't load target `{name}':No such file or directory")),
            _ => {}
        }
    }
    match Rule::parse(text) {
        Some(rule) if !is_of_family(family, &rule) => Err(format!("the rule is not for {family}")),
        Some(rule) => check_protocol(&rule),
        None => Ok(()),
    }
}

/// Whether all addresses of a rule, and its answer to rejected packets, are of a family.
fn is_of_family(family: Family, rule: &Rule) -> bool {
    let net = |net: &IpNet| Family::of(net.addr()) == family;
    let v6 = family == Family::V6;
    let matches = rule.matches.iter().all(|m| match m {
        Match::OriginalDestination(range) => net(range),
        Match::Recent(recent) => recent.v6 == v6,
        _ => true,
    });
    let action = match &rule.action {
        Some(Action::Dnat(target)) => Family::of(target.ip) == family,
        Some(Action::Reject(Refusal::Icmp)) => !v6,
        Some(Action::Reject(Refusal::Icmp6)) => v6,
        _ => true,
    };
    let addresses = [&rule.source, &rule.destination];
    matches && action && addresses.into_iter().flatten().all(|is| net(&is.value))
}

/// Whether the ports and the target of a rule are allowed with its protocol.
fn check_protocol(rule: &Rule) -> Step {
    let of_other = |m: &Match| matches!(m, Match::Port { protocol, .. } if rule.protocol != Some(*protocol));
    if rule.matches.iter().any(of_other) {
        return Err("unknown option \"--dport\"".into());
    }
    match &rule.action {
        Some(Action::Dnat(_)) if rule.protocol.is_none() => {
            Err("Need TCP, UDP, SCTP or DCCP with port specification".into())
        }
        Some(Action::Reject(Refusal::TcpReset)) if rule.protocol != Some(Protocol::Tcp) => {
            Err("--reject-with tcp-reset needs -p tcp".into())
        }
        _ => Ok(()),
    }
}

impl Write for Session<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failure.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.partial.extend(bytes);
        while let Some(end) = self.partial.iter().position(|b| *b == b'\n') {
            let rest = self.partial.split_off(end + 1);
            let line = std::mem::replace(&mut self.partial, rest);
            self.read(&String::from_utf8_lossy(&line[..end]));
            if self.failure.is_some() {
                break;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
