//! A script on its way into the tables, line by line.

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

/// How long a chain's name may be (`XT_EXTENSION_MAXNAMELEN`).
const LONGEST: usize = 28;
/// Targets that are no chains, and in which of our tables they make sense.
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
    // It can do more, but a mark can be had from a set in this table only.
    ("SET", &[Table::Mangle]),
];

/// The tool at work.
pub(super) struct Session<'t> {
    family: Family,
    tables: &'t mut Tables,
    /// The table that is being changed, as it will be.
    open: Option<(Table, Content)>,
    /// What was read.
    script: String,
    line: usize,
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    failure: Option<Failure>,
    /// Lines with one of these in them are refused.
    pub(super) refuses: BTreeSet<String>,
    /// It is killed when it has read so many lines.
    pub(super) dies_after: Option<usize>,
    /// Having looked at a table, it takes for made what the table has of itself, though it has never been used
    /// (iptables-nft 1.8).
    pub(super) is_rash: bool,
    looked: bool,
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
            refuses: BTreeSet::new(),
            dies_after: None,
            is_rash: false,
            looked: false,
        }
    }

    /// The end of the script: what was read of it, and what came of it.
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
        let step = match self.refuses.iter().find(|text| line.contains(*text)) {
            Some(text) => Err(format!("whatever has `{text}` in it is refused")),
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
            let table = line.strip_prefix('*').and_then(Table::parse).ok_or("no table to do that in")?;
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
                self.looked = false;
                Ok(())
            }
            "-S" => {
                self.looked = self.is_rash;
                Ok(())
            }
            "-A" | "-I" => {
                check(self.family, *table, content, rule)?;
                let rules = content.chains.get_mut(chain).ok_or("No chain/target/match by that name")?;
                if self.looked && rules.is_empty() && builtin(*table).contains(&chain) {
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

/// Makes a chain, or empties it; one that is built in gets a policy.
fn declare(table: Table, content: &mut Content, name: &str, policy: &str) -> Step {
    if builtin(table).contains(&name) {
        if policy != "-" {
            content.policies.insert(name.to_owned(), policy.to_owned());
        }
        return Ok(());
    }
    if name.len() > LONGEST {
        return Err(format!("chain name `{name}' too long"));
    }
    content.chains.insert(name.to_owned(), Vec::new());
    Ok(())
}

fn remove(table: Table, content: &mut Content, chain: &str) -> Step {
    let rules = content.chains.get(chain).ok_or("No chain/target/match by that name")?;
    if builtin(table).contains(&chain) {
        return Err("it is built in".into());
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

/// Whether a rule may be there.
fn check(family: Family, table: Table, content: &Content, text: &str) -> Step {
    if let Some(name) = target(text) {
        let chain = content.chains.contains_key(name) && !builtin(table).contains(&name);
        let known = TARGETS.iter().find(|(target, _)| *target == name);
        match known {
            Some((_, tables)) if !tables.contains(&table) => {
                return Err(format!("{name} makes no sense in table {table}"));
            }
            None if !chain => return Err(format!("Couldn't load target `{name}':No such file or directory")),
            _ => {}
        }
    }
    match Rule::parse(text) {
        Some(rule) if !is_of(family, &rule) => Err(format!("that is not {family}")),
        Some(rule) => agrees(&rule),
        None => Ok(()),
    }
}

/// Whether all addresses of a rule, and what it answers with, are of a family.
fn is_of(family: Family, rule: &Rule) -> bool {
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
    let ends = [&rule.source, &rule.destination];
    matches && action && ends.into_iter().flatten().all(|is| net(&is.value))
}

/// Whether what a rule says of ports goes with the protocol it says it is for.
fn agrees(rule: &Rule) -> Step {
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
