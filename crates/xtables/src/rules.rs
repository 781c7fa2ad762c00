//! A rule as a value: its matches and its target.
//!
//! A rule prints in the format of `iptables-save`, and [`Rule::parse`] parses the output of both variants of the tool.
//! A rule that these types cannot represent belongs to another program, and is kept as text.

mod parse;
mod print;
#[cfg(test)]
mod tests;

use crate::chains::Chain;
use ipnet::IpNet;
use portway_model::{Protocol, Target};
use std::sync::Arc;

/// A value that a field of the packet must have, or must not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Is<T> {
    /// The value.
    pub value: T,
    /// The field must not have it.
    pub not: bool,
}

/// The field must have this value.
pub const fn is<T>(value: T) -> Is<T> {
    Is { value, not: false }
}

/// The field must not have this value.
pub const fn is_not<T>(value: T) -> Is<T> {
    Is { value, not: true }
}

/// A rule, without its chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// `-s`
    pub source: Option<Is<IpNet>>,
    /// `-d`
    pub destination: Option<Is<IpNet>>,
    /// `-i`; a `+` at the end matches any interface with this prefix.
    pub input: Option<Is<Arc<str>>>,
    /// `-p`
    pub protocol: Option<Protocol>,
    /// `-m …`, in order.
    pub matches: Vec<Match>,
    /// `-j`
    pub action: Option<Action>,
}

/// A condition of a rule, besides addresses, interface and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// A comment, which every packet matches.
    Comment(Arc<str>),
    /// The protocol's own match, with a destination port or without.
    Port {
        /// `tcp`, `udp`, `sctp`
        protocol: Protocol,
        /// `--dport`
        destination: Option<u16>,
    },
    /// The conntrack state of the packet.
    State(Is<States>),
    /// The destination of the connection before translation.
    OriginalDestination(IpNet),
    /// Bits of the packet's mark.
    Mark {
        /// The values of the bits.
        value: u32,
        /// The bits.
        mask: u32,
        /// The bits must not have these values.
        not: bool,
    },
    /// The source is an address of this host.
    SourceIsLocal,
    /// The destination is an address of this host.
    DestinationIsLocal,
    /// The destination is not an address of this host.
    DestinationIsNotLocal,
    /// A random number below the probability.
    Random(Probability),
    /// The source is in a list of recent sources, or is added to it.
    Recent(Recent),
    /// Counts the packet in a named counter (nfacct), and matches.
    Count(Arc<str>),
    /// A set contains the packet's fields.
    Set(Is<Lookup>),
    /// Bits of the mark of the packet's connection.
    ConnectionMark {
        /// The values of the bits.
        value: u32,
        /// The bits.
        mask: u32,
    },
}

/// A lookup in an ipset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// The name of the set.
    pub set: Arc<str>,
    /// The side of the packet that each field is taken from.
    pub sides: Sides,
}

/// The sides of a packet (source or destination) that the fields of a set are taken from, in order.
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
    /// The packet belongs to no connection, and cannot begin one.
    pub const INVALID: States = States(1);
    /// The packet begins a connection.
    pub const NEW: States = States(2);
    /// The packet begins a connection that is related to another one.
    pub const RELATED: States = States(4);
    /// The packet belongs to an established connection.
    pub const ESTABLISHED: States = States(8);
    /// The destination of the connection was translated.
    pub const DNAT: States = States(16);

    /// The union of both sets.
    pub const fn or(self, other: States) -> States {
        States(self.0 | other.0)
    }

    /// Whether it has all states of `other`.
    pub const fn contains(self, other: States) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A probability in units of 2⁻³¹, as in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Probability(pub u32);

/// The probability 1.
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
    /// The name of the list, which is the name of the endpoint's chain.
    pub list: Chain,
    /// Matches sources that were added within this many seconds; `None` adds the source.
    pub within: Option<u32>,
    /// The list has IPv6 addresses.
    pub v6: bool,
}

/// The target of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Continues in another chain, and returns at its end.
    Jump(Chain),
    /// Accepts the packet.
    Accept,
    /// Drops the packet without an answer.
    Drop,
    /// Returns to the calling chain.
    Return,
    /// Rejects the packet with an answer.
    Reject(Refusal),
    /// Translates the destination to an endpoint.
    Dnat(Target),
    /// Translates the source to an address of this host.
    Masquerade,
    /// Changes the packet's mark: clears the bits in `mask`, then applies an exclusive or with `value`.
    Mark {
        /// The operand of the exclusive or.
        value: u32,
        /// The bits to clear.
        mask: u32,
    },
    /// Changes the connection's mark in the same way.
    ConnectionMark {
        /// The operand of the exclusive or.
        value: u32,
        /// The bits to clear.
        mask: u32,
    },
    /// Sets the packet's mark to the one that a set has for it, if the set contains it.
    MapMark(Lookup),
}

/// The answer to a rejected packet.
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
    /// Adds a comment and then a port, in kube-proxy's order.
    pub fn comment_then_port(self, text: impl Into<Arc<str>>, protocol: Protocol, port: u16) -> Rule {
        self.comment(text).port(protocol, port)
    }

    /// A rule for all packets.
    pub fn to(action: Action) -> Rule {
        Rule { action: Some(action), ..Rule::default() }
    }

    /// A jump for all packets.
    pub fn jump(chain: impl Into<Chain>) -> Rule {
        Rule::to(Action::Jump(chain.into()))
    }

    /// Restricts the rule to packets to this range.
    pub fn destination(mut self, range: IpNet) -> Rule {
        self.destination = Some(is(range));
        self
    }

    /// Restricts the rule to packets from this range.
    pub fn source(mut self, range: IpNet) -> Rule {
        self.source = Some(is(range));
        self
    }

    /// Adds a comment.
    pub fn comment(self, text: impl Into<Arc<str>>) -> Rule {
        self.when(Match::Comment(text.into()))
    }

    /// Restricts the rule to packets of this protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Rule {
        self.protocol = Some(protocol);
        self
    }

    /// Restricts the rule to packets of this protocol to this port.
    pub fn port(self, protocol: Protocol, port: u16) -> Rule {
        self.protocol(protocol).when(Match::Port { protocol, destination: Some(port) })
    }

    /// Restricts the rule to packets that a set contains.
    pub fn in_set(self, set: &str, sides: Sides) -> Rule {
        self.when(Match::Set(is(Lookup { set: set.into(), sides })))
    }

    /// Adds a condition.
    pub fn when(mut self, condition: Match) -> Rule {
        self.matches.push(condition);
        self
    }

    /// The chain that the rule jumps to, if any.
    pub fn target(&self) -> Option<&Chain> {
        match &self.action {
            Some(Action::Jump(chain)) => Some(chain),
            _ => None,
        }
    }
}
