//! Reports changes to links and addresses.
//!
//! [`Monitor`] decodes the kernel's notifications to [`Event`]s. A lost or malformed notification is an error: the
//! caller then has to list the links and addresses. The groups have their names from `linux/rtnetlink.h`.

use super::{Address, Link};
use crate::message::Message;
use crate::{DecodeError, Error, Protocol, Result, Socket};
use std::time::Duration;

const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;

/// A change to an address or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An address was added, changed or deleted.
    Address {
        /// Whether it exists now.
        added: bool,
        /// The address.
        address: Address,
    },
    /// A link was added, changed or deleted.
    Link {
        /// Whether it exists now.
        added: bool,
        /// Its index.
        index: u32,
        /// Its name.
        name: String,
    },
}

impl Event {
    /// Decodes a notification; `None` if it is not about an address or a link.
    pub fn decode(m: &Message<'_>) -> Result<Option<Event>, DecodeError> {
        match m.kind {
            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                let added = m.kind == libc::RTM_NEWADDR;
                Ok(Some(Event::Address { added, address: Address::decode(m.body)? }))
            }
            // With family AF_BRIDGE the message is about the port of a bridge: RTM_DELLINK then means that the link was
            // removed from the bridge, not that it was deleted.
            libc::RTM_NEWLINK | libc::RTM_DELLINK if m.body.first() == Some(&(libc::AF_UNSPEC as u8)) => {
                let Link { index, name, .. } = Link::decode(m.body)?;
                Ok(Some(Event::Link { added: m.kind == libc::RTM_NEWLINK, index, name }))
            }
            _ => Ok(None),
        }
    }
}

/// A subscription to the changes of links and addresses of one network namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Subscribes to all changes except those made through sockets with these ports ([`super::Rtnetlink::port`]), as
    /// far as the kernel reports the port. It does so for IPv4 addresses, but not for IPv6 addresses and most changes
    /// of links (seen in Linux 6.1 and 6.18): the caller receives its own changes of these, too, and has to recognise
    /// them.
    pub fn open(ignore_ports: &[u32]) -> Result<Monitor> {
        let mut socket = Socket::open(Protocol::Route)?;
        socket.ignore_ports(ignore_ports)?;
        for group in [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR] {
            socket.join(group)?;
        }
        Ok(Monitor { socket })
    }

    /// Waits at most `time` for events; the result is empty if there were none.
    pub fn wait_for(&mut self, time: Duration) -> Result<Vec<Event>> {
        if self.socket.wait_for(time)? { self.read() } else { Ok(Vec::new()) }
    }

    /// Reads the events that have arrived, in order, without waiting. After an error events are missing, and the caller
    /// has to list the links and addresses.
    pub fn read(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut malformed = None;
        let read = self.socket.receive_ready(|m| match Event::decode(&m) {
            Ok(event) => events.extend(event),
            Err(source) => malformed = Some(source),
        });
        let error = |source| Error::Malformed { operation: "read a notification".into(), source };
        let result = read.and_then(|_| malformed.map_or(Ok(events), |source| Err(error(source))));
        if result.is_err() {
            self.discard();
        }
        result
    }

    /// Discards the notifications that have arrived. The caller lists the links and addresses after this, so it misses
    /// no change.
    fn discard(&mut self) {
        // The kernel reports the loss first, and then delivers the notifications it kept.
        while let Err(Error::Overrun | Error::Malformed { .. }) = self.socket.receive_ready(|_| {}) {}
    }
}
