//! The netlink socket: the only place in Portway that is not safe Rust.
//!
//! A request is answered before `send` returns, since netlink handles it in the sender's context; so a caller
//! sends, then reads what is there without waiting. Only notifications are waited for.
#![expect(unsafe_code, reason = "socket calls that neither std nor rustix offers for netlink")]

use crate::message::{self, Buffer, Message};
use crate::{Error, Malformed, Result};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A netlink family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nf_tables, conntrack, ipset.
    Netfilter,
    /// Families by name, among them ipvs.
    Generic,
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    seq: u32,
    sent: u64,
    send_limit: usize,
    receive: Vec<u8>,
}

/// A dump reply holds at most this much (`netlink_recvmsg` grows its pages to what the reader offers, up to 32 KiB).
const RECEIVE: usize = 64 * 1024;
/// Batches up to this size go out in one piece, where the kernel allows it.
const SEND_LARGE: usize = 256 * 1024 * 1024;
const NETLINK_ADD_MEMBERSHIP: i32 = 1;
const NETLINK_CAP_ACK: i32 = 10;
const NETLINK_EXT_ACK: i32 = 11;
const NETLINK_GET_STRICT_CHK: i32 = 12;

impl Socket {
    /// Opens a socket.
    pub fn open(protocol: Protocol) -> Result<Socket> {
        let number = match protocol {
            Protocol::Route => libc::NETLINK_ROUTE,
            Protocol::Netfilter => libc::NETLINK_NETFILTER,
            Protocol::Generic => libc::NETLINK_GENERIC,
        };
        // SAFETY: no pointers are handed over; the result is checked.
        let raw = check("socket", unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, number)
        })?;
        // SAFETY: `raw` is a descriptor that the kernel just gave us and nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut socket = Socket { fd, port: 0, seq: 0, sent: 0, send_limit: 0, receive: vec![0; RECEIVE] };
        socket.bind()?;
        // Older kernels lack these two; errors are then less talkative, nothing else.
        socket.set_option(libc::SOL_NETLINK, NETLINK_EXT_ACK, 1).ok();
        socket.set_option(libc::SOL_NETLINK, NETLINK_CAP_ACK, 1).ok();
        socket.send_limit = socket.option(libc::SO_SNDBUF).unwrap_or(0);
        Ok(socket)
    }

    /// The port the kernel gave us: what we cause carries it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// How many messages, not datagrams, it has sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Makes room for batches of any size, if we may, else for as much as the system allows.
    pub fn allow_large_batches(&mut self) {
        let size = SEND_LARGE as i32;
        if self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size).is_err() {
            self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, size).ok();
        }
        self.send_limit = self.option(libc::SO_SNDBUF).unwrap_or(0);
    }

    /// Joins a multicast group, with room for many notifications.
    pub fn join(&mut self, group: u32) -> Result<()> {
        let room = 8 * 1024 * 1024;
        if self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, room).is_err() {
            self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, room).ok();
        }
        self.set_option(libc::SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group as i32)
    }

    /// Lets the kernel throw away notifications whose cause is a socket with one of these ports: our own commits.
    pub fn ignore_ports(&mut self, ports: &[u32]) -> Result<()> {
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        // The sender's port is the last word of the header; BPF loads are in network order.
        let mut program = vec![step(0x20, 0, 0, 12)];
        for (i, port) in ports.iter().enumerate() {
            // Jump over the other comparisons and "keep" to "drop".
            program.push(step(0x15, (ports.len() - i) as u8, 0, port.to_be()));
        }
        program.push(step(0x06, 0, 0, u32::MAX));
        program.push(step(0x06, 0, 0, 0));
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: `filter` points to `program`, both live until the call returns, and the length is its own.
        check("attach filter", unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const filter).cast(),
                size_of::<libc::sock_fprog>() as u32,
            )
        })
        .map(|_| ())
    }

    /// Whether the kernel takes the header of a list's request at its word: it then lists only what fits it, and
    /// refuses what it does not know. False if the kernel cannot (before 4.20); it lists everything.
    pub(crate) fn set_strict(&self, strict: bool) -> bool {
        self.set_option(libc::SOL_NETLINK, NETLINK_GET_STRICT_CHK, strict.into()).is_ok()
    }

    /// The next sequence number.
    pub fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1).max(1);
        self.seq
    }

    /// The first of `count` sequence numbers in a row.
    pub(crate) fn reserve_seqs(&mut self, count: u32) -> u32 {
        if self.seq.checked_add(count).is_none() {
            self.seq = 0;
        }
        let first = self.seq + 1;
        self.seq += count;
        first
    }

    /// Sends `bytes`, one or more whole messages, as one datagram.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        // SAFETY: the pointer and length are those of a live slice.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent >= 0 {
            self.sent += message::messages(bytes).count() as u64;
            return Ok(());
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EMSGSIZE) => Err(Error::TooLarge { bytes: bytes.len(), limit: self.send_limit }),
            _ => Err(Error::Socket { what: "send", source }),
        }
    }

    /// Hands every message that is already there to `each`, without waiting; false if there was none.
    pub fn receive_ready(&mut self, mut each: impl FnMut(Message<'_>)) -> Result<bool> {
        let mut any = false;
        while let Some(len) = self.receive(libc::MSG_DONTWAIT)? {
            any = true;
            for message in message::messages(&self.receive[..len]) {
                each(message.map_err(|source| malformed("a notification", source))?);
            }
        }
        Ok(any)
    }

    /// Waits until there is something to read.
    pub fn wait(&self) -> Result<()> {
        self.wait_at_most(-1).map(drop)
    }

    /// Waits until there is something to read, but not for longer; false if there is not.
    pub fn wait_for(&self, time: std::time::Duration) -> Result<bool> {
        self.wait_at_most(time.as_millis().try_into().unwrap_or(i32::MAX))
    }

    fn wait_at_most(&self, milliseconds: i32) -> Result<bool> {
        let mut fd = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: the one pollfd lives on our stack.
            let ready = unsafe { libc::poll(&raw mut fd, 1, milliseconds) };
            if ready >= 0 {
                return Ok(ready > 0);
            }
            let source = io::Error::last_os_error();
            if source.raw_os_error() != Some(libc::EINTR) {
                return Err(Error::Socket { what: "poll", source });
            }
        }
    }

    /// Sends one request and reads its acknowledgement.
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        operation: &str,
        fill: impl FnOnce(&mut Buffer),
    ) -> Result<()> {
        let seq = self.next_seq();
        let mut buffer = Buffer::default();
        buffer.message(kind, flags | message::REQUEST | message::ACK, seq, fill);
        self.send(buffer.bytes())?;
        let mut answer = None;
        self.receive_ready(|m| {
            if m.seq == seq && m.kind == message::TYPE_ERROR {
                answer = Some(Ack::parse(&m));
            }
        })?;
        answer.ok_or_else(|| no_answer(operation))?.into_result(operation)
    }

    /// Sends one request and reads the one message that answers it.
    pub(crate) fn ask<T>(
        &mut self,
        kind: u16,
        operation: &str,
        fill: impl FnOnce(&mut Buffer),
        decode: impl Fn(&Message<'_>) -> Result<T, Malformed>,
    ) -> Result<T> {
        let seq = self.next_seq();
        let mut buffer = Buffer::default();
        buffer.message(kind, message::REQUEST, seq, fill);
        self.send(buffer.bytes())?;
        let mut answer = None;
        self.receive_ready(|m| {
            if m.seq == seq && answer.is_none() {
                answer = Some(match m.kind {
                    message::TYPE_ERROR => Err(Ack::parse(&m)),
                    _ => Ok(decode(&m)),
                });
            }
        })?;
        match answer {
            Some(Ok(answer)) => answer.map_err(|source| malformed(operation, source)),
            Some(Err(ack)) => ack.into_result(operation).and_then(|()| Err(no_answer(operation))),
            None => Err(no_answer(operation)),
        }
    }

    /// Asks for a list and hands each entry to `each`. A list that changed while it was read is read again from
    /// the start: `restart` is called first, so that the caller can forget what it has.
    pub fn dump<S>(
        &mut self,
        kind: u16,
        operation: &str,
        state: &mut S,
        fill: impl Fn(&mut Buffer),
        restart: impl Fn(&mut S),
        mut each: impl FnMut(&mut S, Message<'_>) -> Result<(), Malformed>,
    ) -> Result<()> {
        for _ in 0..16 {
            restart(state);
            if self.dump_once(kind, operation, &fill, &mut |m| each(state, m))? {
                return Ok(());
            }
        }
        Err(Error::Refused {
            operation: operation.to_owned(),
            source: io::Error::from_raw_os_error(libc::EINTR),
            detail: Some("the list kept changing while it was read".into()),
        })
    }

    fn dump_once(
        &mut self,
        kind: u16,
        operation: &str,
        fill: &impl Fn(&mut Buffer),
        each: &mut dyn FnMut(Message<'_>) -> Result<(), Malformed>,
    ) -> Result<bool> {
        let seq = self.next_seq();
        let mut buffer = Buffer::default();
        buffer.message(kind, message::REQUEST | message::DUMP, seq, fill);
        self.send(buffer.bytes())?;
        let mut consistent = true;
        loop {
            let len = self.receive(0)?.ok_or_else(|| no_answer(operation))?;
            for m in message::messages(&self.receive[..len]) {
                let m = m.map_err(|source| malformed(operation, source))?;
                if m.seq != seq {
                    continue;
                }
                consistent &= m.flags & message::DUMP_INTERRUPTED == 0;
                match m.kind {
                    // A list that broke off ends like a whole one, except for the errno.
                    message::TYPE_DONE | message::TYPE_ERROR => {
                        let ack = Ack::parse(&m);
                        if ack.errno == libc::EINTR {
                            return Ok(false);
                        }
                        return ack.into_result(operation).map(|()| consistent);
                    }
                    _ => each(m).map_err(|source| malformed(operation, source))?,
                }
            }
        }
    }

    /// Reads one datagram; `None` if there is none and `flags` say not to wait.
    fn receive(&mut self, flags: i32) -> Result<Option<usize>> {
        loop {
            // SAFETY: the pointer and length are those of our own live buffer.
            let got = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    self.receive.as_mut_ptr().cast(),
                    self.receive.len(),
                    flags | libc::MSG_TRUNC,
                )
            };
            if got >= 0 {
                // With MSG_TRUNC the true length comes back: a datagram that was cut off is not to be trusted.
                return if got as usize > self.receive.len() {
                    Err(Error::Overrun)
                } else {
                    Ok(Some(got as usize))
                };
            }
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => return Ok(None),
                Some(libc::ENOBUFS) => return Err(Error::Overrun),
                _ => return Err(Error::Socket { what: "receive", source }),
            }
        }
    }

    fn bind(&mut self) -> Result<()> {
        // SAFETY: sockaddr_nl is plain data for which all zeroes is a valid value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        let mut len = size_of::<libc::sockaddr_nl>() as u32;
        let fd = self.fd.as_raw_fd();
        // SAFETY: the address lives on our stack and its size is given.
        check("bind", unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        // SAFETY: as above; the kernel writes at most `len` bytes into it.
        check("getsockname", unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) })?;
        self.port = address.nl_pid;
        Ok(())
    }

    fn set_option(&self, level: i32, option: i32, value: i32) -> Result<()> {
        // SAFETY: `value` lives on our stack and its size is given.
        check("set a socket option", unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<i32>() as u32,
            )
        })
        .map(|_| ())
    }

    fn option(&self, option: i32) -> Option<usize> {
        let mut value = 0i32;
        let mut len = size_of::<i32>() as u32;
        // SAFETY: `value` and `len` live on our stack; the kernel writes at most `len` bytes.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        (done == 0).then_some(value as usize)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// An acknowledgement: zero, or an errno with the kernel's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    /// Positive errno, or 0.
    pub errno: i32,
    /// The extended error.
    pub detail: Option<String>,
}

impl Ack {
    /// Reads the body of an error message (`struct nlmsgerr`, then attributes).
    pub(crate) fn parse(m: &Message<'_>) -> Ack {
        const ACK_TLVS: u16 = 0x200;
        let code = m.body.get(..4).and_then(|b| b.try_into().ok()).map_or(libc::EPROTO, i32::from_ne_bytes);
        let tlvs = if m.flags & ACK_TLVS != 0 { m.body.get(20..).unwrap_or_default() } else { &[] };
        let detail = message::attrs(tlvs).find(1).and_then(|a| a.str("message").ok().map(str::to_owned));
        Ack { errno: code.saturating_abs(), detail }
    }

    /// An error that says what was asked, if it is one.
    pub(crate) fn into_result(self, operation: &str) -> Result<()> {
        if self.errno == 0 {
            return Ok(());
        }
        Err(Error::Refused {
            operation: operation.to_owned(),
            source: io::Error::from_raw_os_error(self.errno),
            detail: self.detail,
        })
    }
}

fn malformed(operation: &str, source: Malformed) -> Error {
    Error::Malformed { operation: operation.to_owned(), source }
}

fn no_answer(operation: &str) -> Error {
    Error::NoAnswer(operation.to_owned())
}

fn check(what: &'static str, result: i32) -> Result<i32> {
    if result < 0 { Err(Error::Socket { what, source: io::Error::last_os_error() }) } else { Ok(result) }
}
