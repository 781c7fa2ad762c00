//! Notices what others do to the ruleset.
//!
//! The kernel multicasts every change, with the port of the socket it came from; a filter in the kernel keeps our
//! own commits from us, so that what arrives is by definition somebody else's.

use super::Family;
use super::list::body;
use super::wire::{GROUP, NEWGEN, SUBSYSTEM, TABLE};
use crate::message::Message;
use crate::{Malformed, Protocol, Result, Socket};

/// Something that changed in the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An object of a table was made, changed or removed.
    Table {
        /// Its family's number.
        family: u8,
        /// Its table.
        table: String,
    },
    /// The transaction that made the changes before this is complete.
    Commit {
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
            let pid = attrs.clone().find(2).map(|a| a.be32("process id")).transpose()?;
            let name = attrs.find(3).map(|a| a.str("process name")).transpose()?;
            return Ok(Change::Commit { process: pid.map(|p| (p, name.unwrap_or_default().to_owned())) });
        }
        let Some(table) = attrs.find(TABLE) else { return Ok(Change::Other) };
        let table = table.str("table name")?.to_owned();
        Ok(Change::Table { family: m.body[0], table })
    }
}

/// A subscription to the ruleset's changes.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Subscribes to everything but what the sockets with these ports do.
    pub fn open(own: &[u32]) -> Result<Monitor> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        socket.ignore_ports(own)?;
        socket.join(GROUP)?;
        Ok(Monitor { socket })
    }

    /// Waits until somebody changes `table` in one of `families`; who it was comes back.
    pub fn wait(&mut self, families: &[Family], table: &str) -> Result<Foreign> {
        loop {
            self.socket.wait()?;
            if let Some(foreign) = self.read(families, table)? {
                return Ok(foreign);
            }
        }
    }

    /// Reads what has arrived, without waiting: whether it touched `table` of one of `families`, and who did it.
    pub fn read(&mut self, families: &[Family], table: &str) -> Result<Option<Foreign>> {
        let mut touched = false;
        let mut by = None;
        let mut bad = None;
        self.socket.receive_ready(|m| match Change::decode(&m) {
            Ok(Change::Table { family, table: t }) => {
                touched |= t == table && families.iter().any(|f| f.number() == family);
            }
            Ok(Change::Commit { process }) if touched => by = by.take().or(process),
            Ok(_) => {}
            Err(e) => bad = Some(e),
        })?;
        match bad {
            // What cannot be read may have been ours: better look once too often.
            Some(_) => Ok(Some(Foreign { process: None })),
            None => Ok(touched.then_some(Foreign { process: by })),
        }
    }
}

/// Somebody else changed our table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Who it was, as far as the kernel tells.
    pub process: Option<(u32, String)>,
}
