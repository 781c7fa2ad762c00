//! Counts open connections through ipvs.
//!
//! The kernel's count of active connections omits half-closed ones, and includes entries that are not connections: if a
//! client connects to an endpoint directly, from a port that it used through ipvs less than two minutes ago, ipvs takes
//! the endpoint's reply for the start of a connection (`SYN_SENT`).

use crate::servers::Key;
use portway_model::Protocol;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// The connections of this thread's network namespace.
const LIST: &str = "/proc/thread-self/net/ip_vs_conn";
/// States of entries that are not open connections.
const NOT_OPEN: [&str; 6] = ["NONE", "TIME_WAIT", "CLOSE", "SYN_SENT", "CLOSED", "REJECTED"];

/// The number of open TCP and SCTP connections to the virtual servers that `includes` selects. UDP flows are not
/// counted: they never end, and lose nothing by starting anew.
pub(crate) fn count_open(includes: impl Fn(Key) -> bool) -> io::Result<usize> {
    let count = || match std::fs::read(LIST) {
        Ok(list) => {
            Ok(String::from_utf8_lossy(&list).lines().filter_map(parse).filter(|k| includes(*k)).count())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    };
    // Older kernels may omit entries from the list while others are added or removed.
    match count()? {
        0 => count(),
        some => Ok(some),
    }
}

/// The virtual server of an open connection. A line has the protocol, the addresses and ports of the client, the
/// Service and the endpoint in hexadecimal digits, and the state. An entry with client port 0 is no connection but the
/// affinity of a client.
fn parse(line: &str) -> Option<Key> {
    let mut fields = line.split_ascii_whitespace();
    let protocol = match fields.next()? {
        "TCP" => Protocol::Tcp,
        "SCTP" => Protocol::Sctp,
        _ => return None,
    };
    let client_port = fields.nth(1)?;
    let ip = address(fields.next()?)?;
    let port = u16::from_str_radix(fields.next()?, 16).ok()?;
    let state = fields.nth(2)?;
    let is_open = client_port != "0000" && !NOT_OPEN.contains(&state);
    is_open.then_some(Key::Address { protocol, ip, port })
}

/// Parses an address of the list: `0A60000A`, or eight groups with colons, on some kernels in brackets.
fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.trim_matches(['[', ']']).parse().ok();
    }
    Some(Ipv4Addr::from_bits(u32::from_str_radix(text, 16).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tcp_and_sctp_connections_that_have_not_ended_are_open() {
        let key = |ip: &str, port| {
            let ip = ip.parse().expect("an address");
            Some(Key::Address { protocol: Protocol::Tcp, ip, port })
        };
        for (line, server) in [
            ("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData", None),
            ("TCP C0A832C9 8A2E 0A600001 0050 0AF4010A 1F90 ESTABLISHED     899", key("10.96.0.1", 80)),
            ("TCP C0A832C9 8A30 0A600001 0050 0AF4010A 1F90 FIN_WAIT        119", key("10.96.0.1", 80)),
            ("TCP C0A832C9 8A30 C0A8320B 7531 0AF4010A 1F90 SYN_RECV        59", key("192.168.50.11", 30001)),
            ("TCP C0A832C9 8A32 0A600001 0050 0AF4010B 1F90 TIME_WAIT       119", None),
            ("TCP C0A832C9 8A34 0A600001 0050 0AF4010B 1F90 SYN_SENT        119", None),
            ("TCP C0A832C9 0000 0A600001 0050 0AF4010B 1F90 NONE            119", None),
            ("TCP C0A832C9 0000 0A600001 0050 0AF4010B 1F90 ASSURED       10698", None),
            ("UDP C0A832C9 8A36 0A600035 0035 0AF4010B 1F90 UDP             299", None),
            (
                "TCP fd50:0000:0000:0000:0000:0000:0000:0201 8A36 fd96:0000:0000:0000:0000:0000:0000:0001 0050 \
                 fd10:0244:0001:0000:0000:0000:0000:0010 1F90 CLOSE_WAIT       59",
                key("fd96::1", 80),
            ),
            ("a line of something else", None),
        ] {
            assert_eq!(parse(line), server, "{line}");
        }
    }
}
