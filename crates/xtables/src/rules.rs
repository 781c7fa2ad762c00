//! A rule as a value: what it looks at, and what it does.
//!
//! Printing gives the spelling of `iptables-save`, and [`Rule::parse`] reads it back, from either variant of the
//! tool. A rule that these types cannot hold belongs to another program, and is kept as text.

mod parse;
mod print;
#[cfg(test)]
mod tests;

use crate::chains::Chain;
use ipnet::IpNet;
use portway_model::{Protocol, Target};
use std::sync::Arc;

/// Something that a packet must be, or must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Is<T> {
    /// What it must be.
    pub value: T,
    /// It must not.
    pub not: bool,
}

/// It must be this.
pub const fn is<T>(value: T) -> Is<T> {
    Is { value, not: false }
}

/// It must not be this.
pub const fn is_not<T>(value: T) -> Is<T> {
    Is { value, not: true }
}

/// One rule, without the chain it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// `-s`
    pub source: Option<Is<IpNet>>,
    /// `-d`
    pub destination: Option<Is<IpNet>>,
    /// `-i`; a `+` at its end stands for anything.
    pub input: Option<Is<Arc<str>>>,
    /// `-p`
    pub protocol: Option<Protocol>,
    /// `-m …`, in order.
    pub matches: Vec<Match>,
    /// `-j`
    pub action: Option<Action>,
}

/// What a rule looks at, besides addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// Nothing: words for the reader.
    Comment(Arc<str>),
    /// The protocol's own match, with a destination port or without.
    Port {
        /// `tcp`, `udp`, `sctp`
        protocol: Protocol,
        /// `--dport`
        destination: Option<u16>,
    },
    /// What conntrack thinks of the packet's connection.
    State(Is<States>),
    /// Where the connection was headed before it was translated.
    OriginalDestination(IpNet),
    /// Bits of the packet's mark.
    Mark {
        /// Their values.
        value: u32,
        /// Which bits.
        mask: u32,
        /// They must not be so.
        not: bool,
    },
    /// The source is an address of this machine.
    SourceIsLocal,
    /// The destination is an address of this machine.
    DestinationIsLocal,
    /// The destination is none of them.
    DestinationIsElsewhere,
    /// Chance.
    Random(Probability),
    /// The source is, or is put, on a list of recent ones.
    Recent(Recent),
    /// Counts in an object of the kernel's.
    Count(Arc<str>),
    /// The packet is in a set.
    Set(Is<Lookup>),
    /// Bits of the mark of the packet's connection.
    ConnectionMark {
        /// Their values.
        value: u32,
        /// Which bits.
        mask: u32,
    },
}

/// Where in a packet to look for the fields of a set, and which set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// The set's name.
    pub set: Arc<str>,
    /// The side that each field is taken from.
    pub sides: Sides,
}

/// The sides of a packet that the fields of a set are taken from, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sides {
    /// `dst`
    Destination,
    /// `src`
    Source,
    /// `dst,dst`
    DestinationTwice,
    /// `dst,dst,src`
    DestinationTwiceSource,
}

/// A set of conntrack's states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct States(pub(crate) u8);

impl States {
    /// Belongs to no connection.
    pub const INVALID: States = States(1);
    /// Begins one.
    pub const NEW: States = States(2);
    /// Has to do with one.
    pub const RELATED: States = States(4);
    /// Belongs to one.
    pub const ESTABLISHED: States = States(8);
    /// Its destination was translated.
    pub const DNAT: States = States(16);

    /// Either of them.
    pub const fn or(self, other: States) -> States {
        States(self.0 | other.0)
    }

    /// Whether all of `other` are in it.
    pub const fn contains(self, other: States) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A chance in 2³¹, which is how the kernel keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Probability(pub u32);

/// Certainty.
const ONE: u64 = 1 << 31;

impl Probability {
    /// One in `n`.
    pub const fn one_in(n: usize) -> Probability {
        let n = n as u64;
        Probability(((2 * ONE + n) / (2 * n)) as u32)
    }
}

/// A list of recent source addresses (`xt_recent`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recent {
    /// The list's name: that of its endpoint's chain.
    pub list: Chain,
    /// How recent; none puts the source on the list instead.
    pub within: Option<u32>,
    /// The list holds IPv6 addresses.
    pub v6: bool,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Goes on in another chain, and comes back.
    Jump(Chain),
    /// Lets it pass.
    Accept,
    /// Lets it vanish.
    Drop,
    /// Goes back to the chain it came from.
    Return,
    /// Refuses it, in so many words of ICMP.
    Reject(Refusal),
    /// Leads it to an endpoint.
    Dnat(Target),
    /// Gives it this machine's address.
    Masquerade,
    /// Sets bits of its mark, by exclusive or after clearing `mask`.
    Mark {
        /// What is xored in.
        value: u32,
        /// What is cleared before.
        mask: u32,
    },
    /// Sets bits of its connection's mark in the same way.
    ConnectionMark {
        /// What is xored in.
        value: u32,
        /// What is cleared before.
        mask: u32,
    },
    /// Gives it the mark that a set has for it, if it is in there.
    MapMark(Lookup),
}

/// How a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// `icmp-port-unreachable`
    Icmp,
    /// `icmp6-port-unreachable`
    Icmp6,
    /// `tcp-reset`
    TcpReset,
}

impl Rule {
    /// A comment, then a port: the order in which kube-proxy has them.
    pub fn comment_then_port(self, words: impl Into<Arc<str>>, protocol: Protocol, port: u16) -> Rule {
        self.comment(words).port(protocol, port)
    }

    /// A rule that only does something.
    pub fn to(action: Action) -> Rule {
        Rule { action: Some(action), ..Rule::default() }
    }

    /// A jump.
    pub fn jump(chain: impl Into<Chain>) -> Rule {
        Rule::to(Action::Jump(chain.into()))
    }

    /// For packets to this range only.
    pub fn destination(mut self, range: IpNet) -> Rule {
        self.destination = Some(is(range));
        self
    }

    /// For packets from this range only.
    pub fn source(mut self, range: IpNet) -> Rule {
        self.source = Some(is(range));
        self
    }

    /// With words for the reader.
    pub fn comment(self, words: impl Into<Arc<str>>) -> Rule {
        self.when(Match::Comment(words.into()))
    }

    /// For packets of this protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Rule {
        self.protocol = Some(protocol);
        self
    }

    /// For packets to this port; the protocol goes without saying.
    pub fn port(self, protocol: Protocol, port: u16) -> Rule {
        self.protocol(protocol).when(Match::Port { protocol, destination: Some(port) })
    }

    /// For packets in a set.
    pub fn in_set(self, set: &str, sides: Sides) -> Rule {
        self.when(Match::Set(is(Lookup { set: set.into(), sides })))
    }

    /// For packets of which this holds too.
    pub fn when(mut self, condition: Match) -> Rule {
        self.matches.push(condition);
        self
    }

    /// The chain it jumps to, if it does.
    pub fn target(&self) -> Option<&Chain> {
        match &self.action {
            Some(Action::Jump(chain)) => Some(chain),
            _ => None,
        }
    }
}
