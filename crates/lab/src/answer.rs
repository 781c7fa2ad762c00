//! The text that servers send and probes parse.
//!
//! Over TCP a server first writes `<name> <source>\n`, then answers each line with `<name> <line>\n`. Over UDP each
//! datagram is answered with `<name> <source> <payload>`. The source is the client's address and port as the server
//! sees them: they show whether the client was masqueraded.

use std::fmt;
use std::net::SocketAddr;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The name of the server.
    pub server: String,
    /// The source address and port that the server saw.
    pub source: SocketAddr,
    /// The text of the request.
    pub text: String,
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server, self.source)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, " {}", self.text) }
    }
}

impl Reply {
    /// Parses the output of [`Reply`]'s `Display`: a TCP server's first line, or a UDP server's datagram.
    pub(crate) fn parse(line: &str) -> Option<Reply> {
        let mut parts = line.trim_end_matches('\n').splitn(3, ' ');
        let server = parts.next().filter(|name| !name.is_empty())?.to_owned();
        let source = parts.next()?.parse().ok()?;
        Some(Reply { server, source, text: parts.next().unwrap_or_default().to_owned() })
    }
}

/// An IPv4-mapped IPv6 address as IPv4; other addresses unchanged.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_reply_parses_to_itself() {
        for source in ["10.0.0.1:80", "[fd50::1]:53"] {
            for text in ["", "hello", "two words"] {
                let reply =
                    Reply { server: "pod1a".into(), source: source.parse().unwrap(), text: text.into() };
                assert_eq!(Reply::parse(&reply.to_string()), Some(reply));
            }
        }
        for invalid in ["", "pod1a", "pod1a x", " 10.0.0.1:80"] {
            assert_eq!(Reply::parse(invalid), None, "{invalid:?}");
        }
    }
}
