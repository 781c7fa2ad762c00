//! Notices what others do to the ruleset.
//!
//! The kernel multicasts every change, with the port of the socket it came from; a filter in the kernel keeps our
//! own commits from us, so that what arrives is by definition somebody else's. A transaction is announced object by
//! object, then as a new generation: in go those notifications, out come [`Commit`]s, one for each transaction that
//! touched a table somebody asked for. What cannot be read, or was lost, is an error, after which only a look at the
//! ruleset helps.

use super::Family;
use super::list::body;
use super::wire::{DELCHAIN, DELRULE, GROUP, NEWCHAIN, NEWGEN, NEWRULE, SUBSYSTEM, TABLE};
use crate::message::Message;
use crate::{Error, Malformed, Protocol, Result, Socket};

/// Something that changed in the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An object of a table was made, changed or removed.
    Table {
        /// Its family's number.
        family: u8,
        /// Its table.
        table: String,
        /// Its chain, if it is a rule, or a chain itself.
        chain: Option<String>,
    },
    /// The transaction that made the changes before this is complete.
    Commit {
        /// The ruleset's generation from here on.
        generation: u32,
        /// Who did it, as far as the kernel tells: process id and name.
        process: Option<(u32, String)>,
    },
    /// Something of no interest.
    Other,
}

impl Change {
    /// Reads a notification.
    pub fn decode(m: &Message<'_>) -> Result<Change, Malformed> {
        if m.kind & 0xff00 != SUBSYSTEM {
            return Ok(Change::Other);
        }
        let attrs = body(m)?;
        if m.kind == NEWGEN {
            let generation = attrs.clone().need(1, "generation")?.be32("generation")?;
            let pid = attrs.clone().find(2).map(|a| a.be32("process id")).transpose()?;
            let name = attrs.find(3).map(|a| a.str("process name")).transpose()?;
            let process = pid.map(|p| (p, name.unwrap_or_default().to_owned()));
            return Ok(Change::Commit { generation, process });
        }
        let Some(table) = attrs.clone().find(TABLE) else { return Ok(Change::Other) };
        let table = table.str("table name")?.to_owned();
        let chain = match m.kind {
            NEWRULE | DELRULE => attrs.find(2),
            NEWCHAIN | DELCHAIN => attrs.find(3),
            _ => None,
        };
        let chain = chain.map(|c| c.str("chain name")).transpose()?.map(str::to_owned);
        Ok(Change::Table { family: m.body[0], table, chain })
    }
}

/// A transaction of somebody else that touched watched tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The ruleset's generation since.
    pub generation: u32,
    /// Who it was, as far as the kernel tells: process id and name.
    pub process: Option<(u32, String)>,
    /// What it touched of the watched tables, in order.
    pub touched: Vec<Touched>,
}

/// A watched table, or a chain of one, that somebody changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The number of its family.
    pub family: u8,
    /// The table.
    pub table: String,
    /// The chain; none if it was not a chain or a rule.
    pub chain: Option<String>,
}

/// The transaction whose announcement is being read: what it has touched so far of the watched tables.
#[derive(Debug, Default)]
struct Announced {
    touched: Vec<Touched>,
}

impl Announced {
    /// Takes one change; the one that ends the transaction gives the commit, if it touched a watched table.
    fn step(&mut self, change: Change, watched: &[&str]) -> Option<Commit> {
        match change {
            Change::Table { family, table, chain } => {
                let ip = [Family::Ipv4, Family::Ipv6].iter().any(|f| f.number() == family);
                let touched = Touched { family, table, chain };
                // Rules of one chain come one after another.
                if ip && watched.contains(&touched.table.as_str()) && self.touched.last() != Some(&touched) {
                    self.touched.push(touched);
                }
                None
            }
            Change::Commit { generation, process } => {
                let touched = std::mem::take(&mut self.touched);
                (!touched.is_empty()).then_some(Commit { generation, process, touched })
            }
            Change::Other => None,
        }
    }
}

/// A subscription to the ruleset's changes.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    /// Outlives a read: the end of a transaction may arrive later than its beginning.
    announced: Announced,
}

impl Monitor {
    /// Subscribes to everything but what the sockets with these ports do.
    pub fn open(own_ports: &[u32]) -> Result<Monitor> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        socket.ignore_ports(own_ports)?;
        socket.join(GROUP)?;
        Ok(Monitor { socket, announced: Announced::default() })
    }

    /// Waits until somebody changes one of the `watched` tables, of family `ip` or `ip6`. What comes back holds at
    /// least one commit.
    pub fn wait(&mut self, watched: &[&str]) -> Result<Vec<Commit>> {
        loop {
            self.socket.wait()?;
            let commits = self.read(watched)?;
            if !commits.is_empty() {
                return Ok(commits);
            }
        }
    }

    /// The same, but for no longer than this; nothing comes back if nothing happened.
    pub fn wait_for(&mut self, watched: &[&str], time: std::time::Duration) -> Result<Vec<Commit>> {
        if self.socket.wait_for(time)? { self.read(watched) } else { Ok(Vec::new()) }
    }

    /// Reads what has arrived, without waiting: the commits that touched one of the `watched` tables, in order. After
    /// an error some are missing: have a look at the ruleset.
    pub fn read(&mut self, watched: &[&str]) -> Result<Vec<Commit>> {
        let mut commits = Vec::new();
        let mut bad = None;
        let announced = &mut self.announced;
        let read = self.socket.receive_ready(|m| match Change::decode(&m) {
            Ok(change) => commits.extend(announced.step(change, watched)),
            Err(source) => bad = Some(source),
        });
        let unreadable = |source| Error::Malformed { operation: "a notification".into(), source };
        let result = read.and_then(|_| bad.map_or(Ok(commits), |source| Err(unreadable(source))));
        if result.is_err() {
            self.forget();
        }
        result
    }

    /// Forgets what has arrived. The caller looks at the ruleset now and sees all of it; the end of some transaction
    /// may be lost, and the next one must not be blamed for its beginning.
    fn forget(&mut self) {
        // The kernel tells of a loss first and hands out what it kept after that.
        while let Err(Error::Overrun | Error::Malformed { .. }) = self.socket.receive_ready(|_| {}) {}
        self.announced = Announced::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire;
    use super::*;
    use crate::message::{Buffer, messages};

    fn table(b: &mut Buffer, kind: u16, family: u8, table: &str) {
        b.message(kind, 0, 1, |b| {
            b.raw(&wire::header(family, 0));
            b.attr_str(TABLE, table);
            match kind {
                NEWRULE => b.attr_str(2, "x"),
                NEWCHAIN => b.attr_str(3, "x"),
                _ => {}
            }
        });
    }

    fn generation(b: &mut Buffer, number: u32, process: Option<(u32, &str)>) {
        b.message(NEWGEN, 0, 1, |b| {
            b.raw(&wire::header(0, 0));
            b.attr_be32(1, number);
            if let Some((pid, name)) = process {
                b.attr_be32(2, pid);
                b.attr_str(3, name);
            }
        });
    }

    fn commits(announced: &mut Announced, b: &Buffer, watched: &[&str]) -> Vec<Commit> {
        messages(b.bytes())
            .filter_map(|m| announced.step(Change::decode(&m.unwrap()).unwrap(), watched))
            .collect()
    }

    #[test]
    fn each_transaction_is_one_commit_with_the_watched_tables_it_touched() {
        let mut b = Buffer::default();
        table(&mut b, wire::NEWRULE, 2, "portway");
        table(&mut b, wire::NEWRULE, 2, "portway");
        table(&mut b, wire::NEWSETELEM, 2, "portway");
        table(&mut b, wire::NEWCHAIN, 10, "portway");
        table(&mut b, wire::NEWRULE, 2, "other");
        generation(&mut b, 7, Some((42, "nft")));
        table(&mut b, wire::NEWRULE, 2, "other");
        generation(&mut b, 8, Some((43, "nft")));
        table(&mut b, wire::DELTABLE, 2, "kube-proxy");
        generation(&mut b, 9, None);
        let seen = commits(&mut Announced::default(), &b, &["portway", "kube-proxy"]);
        let touched = |family, table: &str, chain: Option<&str>| Touched {
            family,
            table: table.to_owned(),
            chain: chain.map(str::to_owned),
        };
        let both = vec![
            touched(2, "portway", Some("x")),
            touched(2, "portway", None),
            touched(10, "portway", Some("x")),
        ];
        assert_eq!(
            seen,
            [
                Commit { generation: 7, process: Some((42, "nft".into())), touched: both },
                Commit { generation: 9, process: None, touched: vec![touched(2, "kube-proxy", None)] },
            ]
        );
    }

    #[test]
    fn a_transaction_may_arrive_in_two_parts() {
        let mut announced = Announced::default();
        let (mut first, mut second) = (Buffer::default(), Buffer::default());
        table(&mut first, wire::NEWRULE, 10, "portway");
        generation(&mut second, 7, None);
        assert_eq!(commits(&mut announced, &first, &["portway"]), []);
        let seen = commits(&mut announced, &second, &["portway"]);
        let touched = Touched { family: 10, table: "portway".into(), chain: Some("x".into()) };
        assert_eq!(seen, [Commit { generation: 7, process: None, touched: vec![touched] }]);
        assert_eq!(commits(&mut announced, &second, &["portway"]), [], "nothing is left over");
    }

    #[test]
    fn a_table_of_the_same_name_in_another_family_is_not_watched() {
        let mut b = Buffer::default();
        for family in [1, 5, 7] {
            table(&mut b, wire::NEWRULE, family, "portway");
        }
        generation(&mut b, 7, None);
        assert_eq!(commits(&mut Announced::default(), &b, &["portway"]), []);
    }

    #[test]
    fn a_commit_without_its_generation_is_malformed() {
        let mut b = Buffer::default();
        b.message(NEWGEN, 0, 1, |b| b.raw(&wire::header(0, 0)));
        let message = messages(b.bytes()).next().unwrap().unwrap();
        assert_eq!(Change::decode(&message), Err(Malformed::Missing("generation")));
    }
}
