//! Sends IPv4 packets with forged source addresses.

use portway_lab::Namespace;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The length of an IPv4 header without options.
const HEADER: usize = 20;

/// Source prefixes: TEST-NET-3 (RFC 5737), to which replies are dropped, and the link, on which these addresses are
/// unused.
const TEST_NET_3: [u8; 3] = [203, 0, 113];
const ON_LINK: [u8; 3] = [192, 168, 50];
/// The first unused host number on the link: above those of the lab's nodes, below those of its clients.
const UNUSED: u8 = 100;

/// The n-th of many source addresses, each with a different port. No host has these addresses.
pub(super) fn forged_source(n: u16) -> SocketAddrV4 {
    let host = (n % 64) as u8;
    let ([a, b, c], d) = if n.is_multiple_of(8) { (ON_LINK, UNUSED + host) } else { (TEST_NET_3, 1 + host) };
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), 1024 + n)
}

/// A raw socket for packets with forged sources.
#[derive(Debug)]
pub(super) struct Forger(OwnedFd);

impl Forger {
    /// Opens the socket in a namespace.
    pub(super) fn new(from: &Namespace) -> io::Result<Forger> {
        // With this protocol the sender writes the IP header (raw(7)).
        let open =
            || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW));
        Ok(Forger(from.run(open)?))
    }

    /// Sends the first segment of a TCP connection.
    pub(super) fn syn(&self, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<()> {
        // Sequence number, acknowledgement, header of five words and SYN, window, checksum, urgent pointer.
        let rest: [u8; 16] = [0, 0, from.port() as u8, 1, 0, 0, 0, 0, 5 << 4, 2, 0xff, 0xff, 0, 0, 0, 0];
        self.send(from, to, TCP, 16, &rest)
    }

    /// Sends a UDP datagram.
    pub(super) fn datagram(&self, from: SocketAddrV4, to: SocketAddrV4, text: &[u8]) -> io::Result<()> {
        let length = (8 + text.len()) as u16;
        let rest = [&length.to_be_bytes()[..], &[0, 0], text].concat();
        self.send(from, to, UDP, 6, &rest)
    }

    /// `rest` follows the ports; `checksum` is the offset of the checksum from the start of the TCP or UDP header.
    fn send(
        &self,
        from: SocketAddrV4,
        to: SocketAddrV4,
        protocol: u8,
        checksum: usize,
        rest: &[u8],
    ) -> io::Result<()> {
        // The kernel fills in the length, identification and header checksum where there are zeros.
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(from.ip().octets());
        packet.extend(to.ip().octets());
        packet.extend(from.port().to_be_bytes());
        packet.extend(to.port().to_be_bytes());
        packet.extend(rest);
        let length = (packet.len() - HEADER) as u16;
        let pseudo = [&packet[12..HEADER], &[0, protocol], &length.to_be_bytes()].concat();
        let sum = internet_checksum(&[&pseudo, &packet[HEADER..]]);
        packet[HEADER + checksum..][..2].copy_from_slice(&sum.to_be_bytes());
        // A raw socket ignores the port.
        sendto(&self.0, &packet, SendFlags::empty(), &SocketAddrV4::new(*to.ip(), 0))?;
        Ok(())
    }
}

/// RFC 1071; all parts but the last have an even length.
fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let sum: u32 = words.map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}
