//! Prints rules in the format of `iptables-save`.

use super::{Action, Is, Lookup, Match, Probability, Recent, Refusal, Rule, Sides, States};
use ipnet::IpNet;
use std::fmt::{self, Display, Formatter, Write};
use std::net::{IpAddr, SocketAddr};

impl Display for Rule {
    /// The text after `-A CHAIN`, with a space before each option.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            address(f, "-s", source)?;
        }
        if let Some(destination) = &self.destination {
            address(f, "-d", destination)?;
        }
        if let Some(Is { value, not }) = &self.input {
            write!(f, "{} -i {value}", bang(*not))?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, " -p {}", protocol.lower())?;
        }
        self.matches.iter().try_for_each(|m| m.fmt(f))?;
        match &self.action {
            Some(action) => action.fmt(f),
            None => Ok(()),
        }
    }
}

fn bang(not: bool) -> &'static str {
    if not { " !" } else { "" }
}

fn address(f: &mut Formatter<'_>, option: &str, Is { value, not }: &Is<IpNet>) -> fmt::Result {
    write!(f, "{} {option} {value}", bang(*not))
}

impl Display for Match {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Match::Comment(text) => {
                f.write_str(" -m comment --comment ")?;
                quote(f, text)
            }
            Match::Port { protocol, destination: None } => write!(f, " -m {}", protocol.lower()),
            Match::Port { protocol, destination: Some(port) } => {
                write!(f, " -m {} --dport {port}", protocol.lower())
            }
            Match::State(Is { value, not }) => write!(f, " -m conntrack{} --ctstate {value}", bang(*not)),
            Match::OriginalDestination(range) => {
                f.write_str(" -m conntrack --ctorigdst ")?;
                // The tool prints a single address without a prefix length here.
                if range.prefix_len() == range.max_prefix_len() { range.addr().fmt(f) } else { range.fmt(f) }
            }
            Match::Mark { value, mask, not } => {
                write!(f, " -m mark{} --mark {value:#x}", bang(*not))?;
                if *mask == u32::MAX { Ok(()) } else { write!(f, "/{mask:#x}") }
            }
            Match::SourceIsLocal => f.write_str(" -m addrtype --src-type LOCAL"),
            Match::DestinationIsLocal => f.write_str(" -m addrtype --dst-type LOCAL"),
            Match::DestinationIsNotLocal => f.write_str(" -m addrtype ! --dst-type LOCAL"),
            Match::Random(probability) => {
                write!(f, " -m statistic --mode random --probability {probability}")
            }
            Match::Recent(recent) => recent.fmt(f),
            Match::Count(name) => write!(f, " -m nfacct --nfacct-name {name}"),
            Match::Set(Is { value, not }) => write!(f, " -m set{} --match-set {value}", bang(*not)),
            Match::ConnectionMark { value, mask } => {
                write!(f, " -m connmark --mark {value:#x}")?;
                if *mask == u32::MAX { Ok(()) } else { write!(f, "/{mask:#x}") }
            }
        }
    }
}

impl Display for Recent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(" -m recent ")?;
        match self.within {
            Some(seconds) => write!(f, "--rcheck --seconds {seconds} --reap")?,
            None => f.write_str("--set")?,
        }
        let mask: IpAddr = if self.v6 { [0xff; 16].into() } else { [0xff; 4].into() };
        write!(f, " --name {} --mask {mask} --rsource", self.list)
    }
}

/// Prints a text, in double quotes if it has other characters than letters, digits, `-` and `_`, as the tool does.
fn quote(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !text.is_empty() && text.chars().all(plain) {
        return f.write_str(text);
    }
    f.write_char('"')?;
    for c in text.chars() {
        if matches!(c, '"' | '\\' | '\'') {
            f.write_char('\\')?;
        }
        f.write_char(c)?;
    }
    f.write_char('"')
}

impl Display for Probability {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:.11}", f64::from(self.0) / (1u64 << 31) as f64)
    }
}

pub(super) const STATES: [(States, &str); 5] = [
    (States::INVALID, "INVALID"),
    (States::NEW, "NEW"),
    (States::RELATED, "RELATED"),
    (States::ESTABLISHED, "ESTABLISHED"),
    (States::DNAT, "DNAT"),
];

impl Display for States {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = STATES.iter().filter(|(s, _)| self.contains(*s)).map(|(_, name)| *name);
        for (i, name) in names.enumerate() {
            write!(f, "{}{name}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Sides {
    pub(super) const ALL: [(Sides, &'static str); 4] = [
        (Sides::Destination, "dst"),
        (Sides::Source, "src"),
        (Sides::DestinationTwice, "dst,dst"),
        (Sides::DestinationTwiceSource, "dst,dst,src"),
    ];
}

impl Display for Lookup {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sides = Sides::ALL.iter().find(|(s, _)| *s == self.sides).map_or("", |(_, name)| name);
        write!(f, "{} {sides}", self.set)
    }
}

impl Refusal {
    pub(super) const ALL: [(Refusal, &'static str); 3] = [
        (Refusal::Icmp, "icmp-port-unreachable"),
        (Refusal::Icmp6, "icmp6-port-unreachable"),
        (Refusal::TcpReset, "tcp-reset"),
    ];
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Action::Jump(chain) => write!(f, " -j {chain}"),
            Action::Accept => f.write_str(" -j ACCEPT"),
            Action::Drop => f.write_str(" -j DROP"),
            Action::Return => f.write_str(" -j RETURN"),
            Action::Reject(how) => {
                let name = Refusal::ALL.iter().find(|(r, _)| r == how).map_or("", |(_, name)| name);
                write!(f, " -j REJECT --reject-with {name}")
            }
            Action::Dnat(target) => {
                write!(f, " -j DNAT --to-destination {}", SocketAddr::new(target.ip, target.port))
            }
            Action::Masquerade => f.write_str(" -j MASQUERADE --random-fully"),
            Action::Mark { value, mask } => write!(f, " -j MARK --set-xmark {value:#x}/{mask:#x}"),
            Action::ConnectionMark { value, mask } => {
                write!(f, " -j CONNMARK --set-xmark {value:#x}/{mask:#x}")
            }
            Action::MapMark(lookup) => write!(f, " -j SET --map-set {lookup} --map-mark"),
        }
    }
}
