//! Notices what happens to links and addresses.
//!
//! In go the kernel's notifications, out come [`Event`]s. What cannot be read, or was lost, is an error, after which
//! only a look at the links and addresses themselves helps.

use super::{Address, Link};
use crate::message::Message;
use crate::{Error, Malformed, Protocol, Result, Socket};
use std::time::Duration;

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`.
const GROUPS: [u32; 3] = [1, 5, 9];

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An address came, changed, or went.
    Address {
        /// Whether it is there now.
        added: bool,
        /// The address.
        address: Address,
    },
    /// A link came, changed, or went.
    Link {
        /// Whether it is there now.
        added: bool,
        /// Its number.
        index: u32,
        /// Its name.
        name: String,
    },
}

impl Event {
    /// Reads a notification; `None` if it is about something else.
    pub fn decode(m: &Message<'_>) -> Result<Option<Event>, Malformed> {
        match m.kind {
            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                let added = m.kind == libc::RTM_NEWADDR;
                Ok(Some(Event::Address { added, address: Address::decode(m.body)? }))
            }
            // Bridges tell of their ports in this way, too: as a link of a family, which leaves the port, not us.
            libc::RTM_NEWLINK | libc::RTM_DELLINK if m.body.first() == Some(&0) => {
                let Link { index, name, .. } = Link::decode(m.body)?;
                Ok(Some(Event::Link { added: m.kind == libc::RTM_NEWLINK, index, name }))
            }
            _ => Ok(None),
        }
    }
}

/// A subscription to what happens to the links and addresses of one namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Subscribes to everything but what the sockets with these ports ([`super::Rtnetlink::port`]) cause, as far as
    /// the kernel tells. It does for IPv4 addresses. It does not for IPv6 addresses and most changes of links (seen
    /// in Linux 6.1 and 6.18): there the caller hears itself, and has to compare with what it did.
    pub fn open(ignore_ports: &[u32]) -> Result<Monitor> {
        let mut socket = Socket::open(Protocol::Route)?;
        socket.ignore_ports(ignore_ports)?;
        for group in GROUPS {
            socket.join(group)?;
        }
        Ok(Monitor { socket })
    }

    /// Waits until something happens, but for no longer than this; nothing comes back if nothing happened.
    pub fn wait_for(&mut self, time: Duration) -> Result<Vec<Event>> {
        if self.socket.wait_for(time)? { self.read() } else { Ok(Vec::new()) }
    }

    /// Reads what has arrived, without waiting, in order. After an error some of it is missing: have a look at the
    /// links and addresses.
    pub fn read(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut bad = None;
        let read = self.socket.receive_ready(|m| match Event::decode(&m) {
            Ok(event) => events.extend(event),
            Err(source) => bad = Some(source),
        });
        let unreadable = |source| Error::Malformed { operation: "a notification".into(), source };
        let result = read.and_then(|_| bad.map_or(Ok(events), |source| Err(unreadable(source))));
        if result.is_err() {
            self.forget();
        }
        result
    }

    /// Forgets what has arrived: the caller looks for itself now, and sees all of it.
    fn forget(&mut self) {
        // The kernel tells of a loss first and hands out what it kept after that.
        while let Err(Error::Overrun | Error::Malformed { .. }) = self.socket.receive_ready(|_| {}) {}
    }
}
