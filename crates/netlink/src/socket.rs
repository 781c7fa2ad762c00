//! The netlink socket.
//!
//! The kernel handles a request in the context of the sending process and queues the answer before `send` returns, so a
//! caller sends, then reads the queued messages without waiting. It waits only for notifications. Socket options,
//! header flags and the attributes of acknowledgements have their names from `linux/netlink.h`, the instructions of the
//! socket filter from `linux/filter.h`.
#![expect(unsafe_code, reason = "socket calls that neither std nor rustix offers for netlink")]

use crate::message::{self, Buffer, Message};
use crate::{DecodeError, Error, Result};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A netlink family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours.
    Route,
    /// nf_tables, conntrack, ipset, nfacct.
    Netfilter,
    /// Generic netlink families, which are looked up by name, such as IPVS.
    Generic,
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    /// The sequence number used last.
    seq: u32,
    /// Number of messages sent.
    sent: u64,
    /// Size of the send buffer, for error messages.
    send_limit: usize,
    receive: Vec<u8>,
}

/// Size of the buffer for received datagrams. A datagram of a dump is never larger: the kernel sizes it by the buffer
/// of the reader, up to 32 KiB (`netlink_recvmsg`).
const RECEIVE_LEN: usize = 64 * 1024;
/// Size of the send buffer for batches: a batch is one datagram.
const BATCH_SNDBUF: usize = 256 * 1024 * 1024;
/// Size of the receive buffer for notifications.
const NOTIFICATION_RCVBUF: i32 = 8 * 1024 * 1024;
/// Number of attempts to read a list that changes meanwhile.
const DUMP_ATTEMPTS: usize = 16;
/// Size of `struct nlmsgerr` without the request's body: the errno and the request's header.
const NLMSGERR_LEN: usize = 4 + message::NLMSG_HDRLEN;
/// The text of an extended acknowledgement.
const NLMSGERR_ATTR_MSG: u16 = 1;

impl Socket {
    /// Opens a socket.
    pub fn open(protocol: Protocol) -> Result<Socket> {
        let number = match protocol {
            Protocol::Route => libc::NETLINK_ROUTE,
            Protocol::Netfilter => libc::NETLINK_NETFILTER,
            Protocol::Generic => libc::NETLINK_GENERIC,
        };
        // SAFETY: the call takes no pointers, and its result is checked.
        let raw = check("socket(AF_NETLINK)", unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, number)
        })?;
        // SAFETY: the kernel returned `raw` just now, so it is open, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut socket =
            Socket { fd, port: 0, seq: 0, sent: 0, send_limit: 0, receive: vec![0; RECEIVE_LEN] };
        socket.bind()?;
        // Errors with a text, and without a copy of the request. Kernels before 4.12 lack one or both options.
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1).ok();
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1).ok();
        socket.send_limit = socket.option(libc::SO_SNDBUF).unwrap_or(0);
        Ok(socket)
    }

    /// The port that the kernel assigned. Notifications of changes made through this socket contain it.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// The number of messages, not datagrams, sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Enlarges the send buffer for large batches; without CAP_NET_ADMIN, only up to `net.core.wmem_max`.
    pub fn allow_large_batches(&mut self) {
        let size = BATCH_SNDBUF as i32;
        if self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size).is_err() {
            self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, size).ok();
        }
        self.send_limit = self.option(libc::SO_SNDBUF).unwrap_or(0);
    }

    /// Joins a multicast group, with a large receive buffer for notifications.
    pub fn join(&mut self, group: u32) -> Result<()> {
        if self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, NOTIFICATION_RCVBUF).is_err() {
            self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, NOTIFICATION_RCVBUF).ok();
        }
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group as i32)
    }

    /// Makes the kernel drop notifications that were caused by sockets with these ports.
    pub fn ignore_ports(&mut self, ports: &[u32]) -> Result<()> {
        let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        // BPF loads words in network order, so ports are compared in that order.
        let load_port = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let mut program = vec![instruction(load_port, 0, 0, message::NLMSG_PID_OFFSET as u32)];
        for (i, port) in ports.iter().enumerate() {
            // If the port is equal, jump over the remaining comparisons and the accepting return to the dropping one.
            let to_drop = (ports.len() - i) as u8;
            let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
            program.push(instruction(code, to_drop, 0, port.to_be()));
        }
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: `filter` and the `program` it points to live until the call returns, `filter.len` is the number of
        // instructions in `program`, and the size passed is that of `filter`.
        check("setsockopt(SO_ATTACH_FILTER)", unsafe {
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

    /// Turns strict checking of list requests on or off (`NETLINK_GET_STRICT_CHK`). With it the kernel lists only the
    /// objects that match the request's header, and refuses unknown fields. False if the kernel does not have the
    /// option (before 4.20); it then lists all objects.
    pub(crate) fn set_strict(&self, strict: bool) -> bool {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, strict.into()).is_ok()
    }

    /// The next sequence number.
    pub fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1).max(1);
        self.seq
    }

    /// The first of `count` consecutive sequence numbers.
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
        // SAFETY: pointer and length are those of `bytes`, which lives until the call returns; the kernel only reads.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent >= 0 {
            self.sent += message::messages(bytes).count() as u64;
            return Ok(());
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::EMSGSIZE) => Err(Error::TooLarge { bytes: bytes.len(), limit: self.send_limit }),
            _ => Err(Error::Socket { call: "send", source }),
        }
    }

    /// Passes every queued message to `each`, without waiting; false if there was none.
    pub fn receive_ready(&mut self, mut each: impl FnMut(Message<'_>)) -> Result<bool> {
        let mut any = false;
        while let Some(len) = self.receive(libc::MSG_DONTWAIT)? {
            any = true;
            for message in message::messages(&self.receive[..len]) {
                each(message.map_err(|source| malformed("read queued messages", source))?);
            }
        }
        Ok(any)
    }

    /// Waits until there is a message to read.
    pub fn wait(&self) -> Result<()> {
        self.wait_at_most(-1).map(drop)
    }

    /// Waits at most `time` until there is a message to read; false if there is none.
    pub fn wait_for(&self, time: std::time::Duration) -> Result<bool> {
        self.wait_at_most(time.as_millis().try_into().unwrap_or(i32::MAX))
    }

    fn wait_at_most(&self, milliseconds: i32) -> Result<bool> {
        let mut fd = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: the pointer is that of `fd`, a local variable, and the count of entries is 1.
            let ready = unsafe { libc::poll(&raw mut fd, 1, milliseconds) };
            if ready >= 0 {
                return Ok(ready > 0);
            }
            let source = io::Error::last_os_error();
            if source.raw_os_error() != Some(libc::EINTR) {
                return Err(Error::Socket { call: "poll", source });
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
        buffer.message(kind, flags | message::NLM_F_REQUEST | message::NLM_F_ACK, seq, fill);
        self.send(buffer.bytes())?;
        let mut answer = None;
        self.receive_ready(|m| {
            if m.seq == seq && m.kind == message::NLMSG_ERROR {
                answer = Some(Ack::parse(&m));
            }
        })?;
        answer.ok_or_else(|| no_answer(operation))?.into_result(operation)
    }

    /// Sends one request and reads the one message that answers it.
    pub(crate) fn query<T>(
        &mut self,
        kind: u16,
        operation: &str,
        fill: impl FnOnce(&mut Buffer),
        decode: impl Fn(&Message<'_>) -> Result<T, DecodeError>,
    ) -> Result<T> {
        let seq = self.next_seq();
        let mut buffer = Buffer::default();
        buffer.message(kind, message::NLM_F_REQUEST, seq, fill);
        self.send(buffer.bytes())?;
        let mut answer = None;
        self.receive_ready(|m| {
            if m.seq == seq && answer.is_none() {
                answer = Some(match m.kind {
                    message::NLMSG_ERROR => Err(Ack::parse(&m)),
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

    /// Requests a list and passes each entry to `each`. If the objects change meanwhile, `restart` clears the state and
    /// the list is requested again.
    pub fn dump<S>(
        &mut self,
        kind: u16,
        operation: &str,
        state: &mut S,
        fill: impl Fn(&mut Buffer),
        restart: impl Fn(&mut S),
        mut each: impl FnMut(&mut S, Message<'_>) -> Result<(), DecodeError>,
    ) -> Result<()> {
        for _ in 0..DUMP_ATTEMPTS {
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

    /// Reads a list once; false if the objects changed meanwhile.
    fn dump_once(
        &mut self,
        kind: u16,
        operation: &str,
        fill: &impl Fn(&mut Buffer),
        each: &mut dyn FnMut(Message<'_>) -> Result<(), DecodeError>,
    ) -> Result<bool> {
        let seq = self.next_seq();
        let mut buffer = Buffer::default();
        buffer.message(kind, message::NLM_F_REQUEST | message::NLM_F_DUMP, seq, fill);
        self.send(buffer.bytes())?;
        let mut consistent = true;
        loop {
            let len = self.receive(0)?.ok_or_else(|| no_answer(operation))?;
            for m in message::messages(&self.receive[..len]) {
                let m = m.map_err(|source| malformed(operation, source))?;
                if m.seq != seq {
                    continue;
                }
                consistent &= m.flags & message::NLM_F_DUMP_INTR == 0;
                match m.kind {
                    // The last message has the errno of an aborted dump, or 0.
                    message::NLMSG_DONE | message::NLMSG_ERROR => {
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

    /// Reads one datagram into the buffer; `None` if there is none and `flags` has `MSG_DONTWAIT`.
    fn receive(&mut self, flags: i32) -> Result<Option<usize>> {
        loop {
            // SAFETY: pointer and length are those of `self.receive`, which is not borrowed elsewhere during the call.
            let got = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    self.receive.as_mut_ptr().cast(),
                    self.receive.len(),
                    flags | libc::MSG_TRUNC,
                )
            };
            if got >= 0 {
                // With MSG_TRUNC the result is the datagram's full length, even if the buffer was too small for it.
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
                _ => return Err(Error::Socket { call: "recv", source }),
            }
        }
    }

    fn bind(&mut self) -> Result<()> {
        // SAFETY: sockaddr_nl consists of integers only, for which zero is a valid value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        let mut len = size_of::<libc::sockaddr_nl>() as u32;
        let fd = self.fd.as_raw_fd();
        // SAFETY: `address` is a local variable and `len` is its size; the kernel only reads it.
        check("bind", unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        // SAFETY: `address` and `len` are local variables; the kernel writes at most `len` bytes, the size of
        // `address`.
        check("getsockname", unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) })?;
        self.port = address.nl_pid;
        Ok(())
    }

    fn set_option(&self, level: i32, option: i32, value: i32) -> Result<()> {
        // SAFETY: `value` is a local variable and the length passed is its size; the kernel only reads it.
        check("setsockopt", unsafe {
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
        // SAFETY: `value` and `len` are local variables; the kernel writes at most `len` bytes, the size of `value`.
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

/// An acknowledgement: 0 for success, or an errno and a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    /// Positive errno, or 0.
    pub errno: i32,
    /// The text of the extended acknowledgement, if there is one.
    pub detail: Option<String>,
}

impl Ack {
    /// Parses the body of an acknowledgement: `struct nlmsgerr`, then attributes.
    pub(crate) fn parse(m: &Message<'_>) -> Ack {
        let code = m.body.get(..4).and_then(|b| b.try_into().ok()).map_or(libc::EPROTO, i32::from_ne_bytes);
        let tlvs = if m.flags & message::NLM_F_ACK_TLVS != 0 {
            m.body.get(NLMSGERR_LEN..).unwrap_or_default()
        } else {
            &[]
        };
        let detail = message::attrs(tlvs).find(NLMSGERR_ATTR_MSG).and_then(|a| a.str("message").ok());
        Ack { errno: code.saturating_abs(), detail: detail.map(str::to_owned) }
    }

    /// The result of `operation`, which names the request in the error.
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

fn malformed(operation: &str, source: DecodeError) -> Error {
    Error::Malformed { operation: operation.to_owned(), source }
}

fn no_answer(operation: &str) -> Error {
    Error::NoAnswer(operation.to_owned())
}

fn check(call: &'static str, result: i32) -> Result<i32> {
    if result < 0 { Err(Error::Socket { call, source: io::Error::last_os_error() }) } else { Ok(result) }
}
