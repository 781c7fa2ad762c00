//! Reports commits of other processes to watched tables.
//!
//! The kernel sends a notification for every changed object, with the port of the socket that caused the change, and at
//! the end of a transaction one with the new generation. A socket filter drops the notifications of Portway's own
//! sockets. From all other notifications, [`Monitor`] makes one [`Commit`] for each transaction that touched a watched
//! table. A lost or malformed notification is an error: the caller then has to list the ruleset.

use super::Family;
use super::list::body;
use super::wire::*;
use crate::message::Message;
use crate::{DecodeError, Error, Protocol, Result, Socket};

/// One notification about the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A table, or an object in it, was created, changed or deleted.
    Table {
        /// The table's family (`NFPROTO_*`).
        family: u8,
        /// The table's name.
        table: String,
        /// The name of the chain, if the object is a chain or a rule.
        chain: Option<String>,
    },
    /// The end of the transaction that the notifications before this one belong to.
    Commit {
        /// The ruleset's new generation.
        generation: u32,
        /// Id and name of the process that committed it, if the kernel reports them.
        process: Option<(u32, String)>,
    },
    /// Any other notification.
    Other,
}

impl Change {
    /// Decodes a notification.
    pub fn decode(m: &Message<'_>) -> Result<Change, DecodeError> {
        if m.kind >> 8 != NFNL_SUBSYS_NFTABLES {
            return Ok(Change::Other);
        }
        let attrs = body(m)?;
        if m.kind == NFT_MSG_NEWGEN {
            let generation = attrs.clone().need(NFTA_GEN_ID, "generation")?.be32("generation")?;
            let pid = attrs.clone().find(NFTA_GEN_PROC_PID).map(|a| a.be32("process id")).transpose()?;
            let name = attrs.find(NFTA_GEN_PROC_NAME).map(|a| a.str("process name")).transpose()?;
            let process = pid.map(|p| (p, name.unwrap_or_default().to_owned()));
            return Ok(Change::Commit { generation, process });
        }
        // The table's attribute has the same number in chains, rules, sets and elements.
        let Some(table) = attrs.clone().find(NFTA_TABLE_NAME) else { return Ok(Change::Other) };
        let table = table.str("table name")?.to_owned();
        let chain = match m.kind {
            NFT_MSG_NEWRULE | NFT_MSG_DELRULE => attrs.find(NFTA_RULE_CHAIN),
            NFT_MSG_NEWCHAIN | NFT_MSG_DELCHAIN => attrs.find(NFTA_CHAIN_NAME),
            _ => None,
        };
        let chain = chain.map(|c| c.str("chain name")).transpose()?.map(str::to_owned);
        Ok(Change::Table { family: m.body[0], table, chain })
    }
}

/// A transaction of another process that touched watched tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The ruleset's generation after it.
    pub generation: u32,
    /// Id and name of the process, if the kernel reports them.
    pub process: Option<(u32, String)>,
    /// The watched tables and chains it touched, in order.
    pub touched: Vec<Touched>,
}

impl Commit {
    /// The process, as far as the kernel names it: `nft (process 25318)`.
    pub fn process_name(&self) -> String {
        let process = self.process.as_ref();
        process.map_or("unknown".into(), |(pid, name)| format!("{name} (process {pid})"))
    }
}

/// A watched table, or a chain of one, that another process changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The table's family (`NFPROTO_*`).
    pub family: u8,
    /// The table.
    pub table: String,
    /// The chain, if a chain or a rule was changed.
    pub chain: Option<String>,
}

/// A transaction whose end has not been received: the watched tables and chains it has touched so far.
#[derive(Debug, Default)]
struct PendingCommit {
    touched: Vec<Touched>,
}

impl PendingCommit {
    /// Processes one notification. At the end of a transaction that touched a watched table, returns the commit.
    fn step(&mut self, change: Change, watched: &[&str]) -> Option<Commit> {
        match change {
            Change::Table { family, table, chain } => {
                let ip = [Family::Ipv4, Family::Ipv6].iter().any(|f| f.number() == family);
                let touched = Touched { family, table, chain };
                // The notifications for the rules of one chain come one after another.
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
    /// Kept between reads, because the notifications of a transaction may arrive in several reads.
    pending: PendingCommit,
}

impl Monitor {
    /// Subscribes to the changes of all sockets except those with these ports.
    pub fn open(own_ports: &[u32]) -> Result<Monitor> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        socket.ignore_ports(own_ports)?;
        socket.join(NFNLGRP_NFTABLES)?;
        Ok(Monitor { socket, pending: PendingCommit::default() })
    }

    /// Waits until another process changes one of the `watched` tables, of family `ip` or `ip6`. Returns at least one
    /// commit.
    pub fn wait(&mut self, watched: &[&str]) -> Result<Vec<Commit>> {
        loop {
            self.socket.wait()?;
            let commits = self.read(watched)?;
            if !commits.is_empty() {
                return Ok(commits);
            }
        }
    }

    /// Like [`Monitor::wait`], but for at most `time`, after which the result is empty.
    pub fn wait_for(&mut self, watched: &[&str], time: std::time::Duration) -> Result<Vec<Commit>> {
        if self.socket.wait_for(time)? { self.read(watched) } else { Ok(Vec::new()) }
    }

    /// Reads the notifications that have arrived, without waiting: the commits that touched one of the `watched`
    /// tables, in order. After an error commits are missing, and the caller has to list the ruleset.
    pub fn read(&mut self, watched: &[&str]) -> Result<Vec<Commit>> {
        let mut commits = Vec::new();
        let mut malformed = None;
        let pending = &mut self.pending;
        let read = self.socket.receive_ready(|m| match Change::decode(&m) {
            Ok(change) => commits.extend(pending.step(change, watched)),
            Err(source) => malformed = Some(source),
        });
        let error = |source| Error::Malformed { operation: "read a notification".into(), source };
        let result = read.and_then(|_| malformed.map_or(Ok(commits), |source| Err(error(source))));
        if result.is_err() {
            self.discard();
        }
        result
    }

    /// Discards the notifications that have arrived. The caller lists the ruleset after this, so it misses no change.
    /// The pending transaction is discarded, too: its end may be lost, and its objects must not count to the next
    /// commit.
    fn discard(&mut self) {
        // The kernel reports the loss first, and then delivers the notifications it kept.
        while let Err(Error::Overrun | Error::Malformed { .. }) = self.socket.receive_ready(|_| {}) {}
        self.pending = PendingCommit::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Buffer, messages};

    fn table(b: &mut Buffer, kind: u16, family: u8, table: &str) {
        b.message(kind, 0, 1, |b| {
            b.raw(&nfgenmsg(family, 0));
            b.attr_str(NFTA_TABLE_NAME, table);
            match kind {
                NFT_MSG_NEWRULE => b.attr_str(NFTA_RULE_CHAIN, "x"),
                NFT_MSG_NEWCHAIN => b.attr_str(NFTA_CHAIN_NAME, "x"),
                _ => {}
            }
        });
    }

    fn generation(b: &mut Buffer, number: u32, process: Option<(u32, &str)>) {
        b.message(NFT_MSG_NEWGEN, 0, 1, |b| {
            b.raw(&nfgenmsg(NFPROTO_UNSPEC, 0));
            b.attr_be32(NFTA_GEN_ID, number);
            if let Some((pid, name)) = process {
                b.attr_be32(NFTA_GEN_PROC_PID, pid);
                b.attr_str(NFTA_GEN_PROC_NAME, name);
            }
        });
    }

    fn commits(pending: &mut PendingCommit, b: &Buffer, watched: &[&str]) -> Vec<Commit> {
        messages(b.bytes())
            .filter_map(|m| pending.step(Change::decode(&m.unwrap()).unwrap(), watched))
            .collect()
    }

    #[test]
    fn each_transaction_is_one_commit_with_the_watched_tables_it_touched() {
        let mut b = Buffer::default();
        table(&mut b, NFT_MSG_NEWRULE, NFPROTO_IPV4, "portway");
        table(&mut b, NFT_MSG_NEWRULE, NFPROTO_IPV4, "portway");
        table(&mut b, NFT_MSG_NEWSETELEM, NFPROTO_IPV4, "portway");
        table(&mut b, NFT_MSG_NEWCHAIN, NFPROTO_IPV6, "portway");
        table(&mut b, NFT_MSG_NEWRULE, NFPROTO_IPV4, "other");
        generation(&mut b, 7, Some((42, "nft")));
        table(&mut b, NFT_MSG_NEWRULE, NFPROTO_IPV4, "other");
        generation(&mut b, 8, Some((43, "nft")));
        table(&mut b, NFT_MSG_DELTABLE, NFPROTO_IPV4, "kube-proxy");
        generation(&mut b, 9, None);
        let seen = commits(&mut PendingCommit::default(), &b, &["portway", "kube-proxy"]);
        let touched = |family, table: &str, chain: Option<&str>| Touched {
            family,
            table: table.to_owned(),
            chain: chain.map(str::to_owned),
        };
        let both = vec![
            touched(NFPROTO_IPV4, "portway", Some("x")),
            touched(NFPROTO_IPV4, "portway", None),
            touched(NFPROTO_IPV6, "portway", Some("x")),
        ];
        assert_eq!(
            seen,
            [
                Commit { generation: 7, process: Some((42, "nft".into())), touched: both },
                Commit {
                    generation: 9,
                    process: None,
                    touched: vec![touched(NFPROTO_IPV4, "kube-proxy", None)]
                },
            ]
        );
    }

    #[test]
    fn a_transaction_may_arrive_in_two_parts() {
        let mut pending = PendingCommit::default();
        let (mut first, mut second) = (Buffer::default(), Buffer::default());
        table(&mut first, NFT_MSG_NEWRULE, NFPROTO_IPV6, "portway");
        generation(&mut second, 7, None);
        assert_eq!(commits(&mut pending, &first, &["portway"]), []);
        let seen = commits(&mut pending, &second, &["portway"]);
        let touched = Touched { family: NFPROTO_IPV6, table: "portway".into(), chain: Some("x".into()) };
        assert_eq!(seen, [Commit { generation: 7, process: None, touched: vec![touched] }]);
        assert_eq!(commits(&mut pending, &second, &["portway"]), [], "the touched tables are reported once");
    }

    #[test]
    fn a_table_of_the_same_name_in_another_family_is_not_watched() {
        let mut b = Buffer::default();
        for family in [libc::NFPROTO_INET, libc::NFPROTO_NETDEV, libc::NFPROTO_BRIDGE] {
            table(&mut b, NFT_MSG_NEWRULE, family as u8, "portway");
        }
        generation(&mut b, 7, None);
        assert_eq!(commits(&mut PendingCommit::default(), &b, &["portway"]), []);
    }

    #[test]
    fn a_commit_notification_without_a_generation_is_malformed() {
        let mut b = Buffer::default();
        b.message(NFT_MSG_NEWGEN, 0, 1, |b| b.raw(&nfgenmsg(NFPROTO_UNSPEC, 0)));
        let message = messages(b.bytes()).next().unwrap().unwrap();
        assert_eq!(Change::decode(&message), Err(DecodeError::Missing("generation")));
    }
}
