//! Connections through ipvs that have not ended, by where they lead.
//!
//! The kernel's own count of active ones leaves out those that one side has closed and the other still sends on, and
//! takes in those that only look like one: a reply to a client that talks past ipvs, from a port that it had used through
//! ipvs a minute before, is taken for the start of something new (`SYN_SENT`).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// In this thread's network namespace.
const LIST: &str = "/proc/thread-self/net/ip_vs_conn";
/// States of connections that have ended, or have never been one.
const NOT_OPEN: [&str; 6] = ["NONE", "TIME_WAIT", "CLOSE", "SYN_SENT", "CLOSED", "REJECTED"];

/// How many lead where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Open(HashMap<SocketAddr, usize>);

impl Open {
    /// Those that the kernel has; none where it has no ipvs.
    pub(crate) fn read() -> io::Result<Open> {
        match std::fs::read_to_string(LIST) {
            Ok(list) => Ok(Open::parse(&list)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Open::default()),
            Err(error) => Err(error),
        }
    }

    fn parse(list: &str) -> Open {
        let mut open = Open::default();
        for to in list.lines().filter_map(parse) {
            *open.0.entry(to).or_default() += 1;
        }
        open
    }

    /// How many lead to an endpoint.
    pub(crate) fn to(&self, endpoint: SocketAddr) -> usize {
        self.0.get(&endpoint).copied().unwrap_or(0)
    }
}

/// Where a connection leads that is open. A line is `TCP` and thrice an address and a port (of the client, the Service and
/// the endpoint), all in hexadecimal digits, and the state. A flow of UDP never ends.
fn parse(line: &str) -> Option<SocketAddr> {
    let mut fields = line.split_ascii_whitespace();
    if !matches!(fields.next()?, "TCP" | "SCTP") {
        return None;
    }
    let ip = address(fields.nth(4)?)?;
    let port = u16::from_str_radix(fields.next()?, 16).ok()?;
    let state = fields.next()?;
    (!NOT_OPEN.contains(&state)).then_some(SocketAddr::new(ip, port))
}

/// An address as the list has it: `0A60000A`, or eight groups with colons and maybe brackets.
fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.trim_matches(['[', ']']).parse().ok();
    }
    Some(Ipv4Addr::from_bits(u32::from_str_radix(text, 16).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP C0A832C9 8A2E 0A600001 0050 0AF4010A 1F90 ESTABLISHED     899
TCP C0A832C9 8A30 0A600001 0050 0AF4010A 1F90 FIN_WAIT        119
TCP C0A832C9 8A32 0A600001 0050 0AF4010B 1F90 TIME_WAIT       119
TCP C0A832C9 8A34 0A600001 0050 0AF4010B 1F90 SYN_SENT        119
TCP C0A832C9 0000 0A600001 0050 0AF4010B 1F90 NONE            119
UDP C0A832C9 8A36 0A600035 0035 0AF4010B 1F90 UDP             299
TCP fd50:0000:0000:0000:0000:0000:0000:0201 8A36 fd96:0000:0000:0000:0000:0000:0000:0001 0050 fd10:0244:0001:0000:0000:0000:0000:0010 1F90 CLOSE_WAIT       59
a line of something else
";

    #[test]
    fn what_can_still_say_something_is_open() {
        let open = Open::parse(ROWS);
        let to = |endpoint: &str| open.to(endpoint.parse().expect("an address"));
        assert_eq!(to("10.244.1.10:8080"), 2);
        assert_eq!(to("10.244.1.11:8080"), 0, "ended, a template, UDP, or never one");
        assert_eq!(to("[fd10:244:1::10]:8080"), 1);
        assert_eq!(open.0.len(), 2);
    }
}
