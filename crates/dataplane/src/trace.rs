//! The types for following a packet through the rules: the host, the packet, the steps on its path, and the verdict.
//!
//! Each mode has its own evaluator, which runs its rules without a kernel and returns a [`Trace`]. Random choices are
//! not drawn but enumerated: each choice has its own [`Path`], so the verdicts name every endpoint that the packet may
//! reach.

use portway_model::{Protocol, Target};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

/// The facts about a node that rules match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The node's addresses; loopback is always among them.
    pub addresses: BTreeSet<IpAddr>,
    /// The clients in lists of recent clients (`/proc/net/xt_recent`), each with the name of its list.
    pub recent: BTreeSet<(String, IpAddr)>,
}

impl Host {
    /// A node with these addresses.
    pub fn with_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> Host {
        Host { addresses: addresses.into_iter().collect(), recent: BTreeSet::new() }
    }

    /// Whether `address` is one of the node's addresses.
    pub fn owns(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

/// The first packet of a connection, as it arrives at a node or leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
    /// The interface it arrived on; `None` if the node itself sent it.
    pub input: Option<String>,
}

/// The end of a packet's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent to one of these endpoints.
    Delivered {
        /// All endpoints that it may be sent to.
        to: BTreeSet<Target>,
        /// It is sent with the node's address as its source.
        masqueraded: bool,
    },
    /// It is refused with a TCP reset or an ICMP message.
    Rejected,
    /// It is dropped without an answer.
    Dropped,
    /// No rule of the mode concerns it.
    Untouched,
}

/// The path of a packet, with all random choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The verdicts. There are several if random choices decide about more than the endpoint: a packet that an endpoint
    /// sends to its own Service is masqueraded if it is sent back to that endpoint, and not if it is sent to another.
    pub verdicts: Vec<Verdict>,
    /// Each path that the packet may take.
    pub paths: Vec<Path>,
}

/// One path that a packet may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The steps on it, in order.
    pub steps: Vec<Step>,
    /// Its end.
    pub verdict: Verdict,
}

/// A step on a packet's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It entered a base chain.
    Hook {
        /// The netfilter hook.
        point: &'static str,
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
    /// A rule matched.
    Rule {
        /// The chain that the rule is in.
        chain: String,
        /// The rule's position, from 0.
        index: usize,
        /// The rule as its tool prints it, without the chain; `None` if the mode has no text for it.
        text: Option<String>,
        /// The properties of the packet that the rule matches; empty if it matches every packet.
        because: Vec<String>,
    },
    /// A rule of another program was skipped, because the evaluator cannot parse it.
    NotUnderstood {
        /// The chain that the rule is in.
        chain: String,
        /// The rule as its tool prints it.
        text: String,
    },
    /// The rule found the packet in a set or map.
    Found {
        /// The set.
        set: String,
        /// The element's comment, which names the Service.
        comment: Option<String>,
        /// The verdict of a verdict map.
        verdict: Option<String>,
    },
    /// A random choice was made.
    Chosen(Chance),
    /// It reached the end of a built-in chain with policy DROP.
    Policy,
    /// Its mark was set.
    Marked(u32),
    /// A virtual server accepted it.
    Accepted {
        /// A description of the server.
        by: String,
    },
    /// The relay made this decision about it.
    Relay(String),
    /// Its destination was translated.
    Translated(Target),
    /// Its source was translated to the node's address.
    Masqueraded,
    /// Its source was added to a list of clients for session affinity.
    Remembered {
        /// The list or set.
        list: String,
        /// The client.
        client: IpAddr,
    },
}

/// A random choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chance {
    /// A number was drawn.
    Number {
        /// The number.
        number: u32,
        /// Numbers below this one can be drawn.
        of: u32,
    },
    /// A rule with this probability was, or was not, taken.
    Probability(String),
}

impl Trace {
    /// The trace of these paths.
    pub fn new(paths: Vec<Path>) -> Trace {
        let mut verdicts: Vec<Verdict> = Vec::new();
        for path in &paths {
            if !verdicts.iter_mut().any(|v| merge(v, &path.verdict)) {
                verdicts.push(path.verdict.clone());
            }
        }
        Trace { verdicts, paths }
    }

    /// The trace of a packet that no rule concerns.
    pub fn untouched() -> Trace {
        Trace::new(vec![Path { steps: Vec::new(), verdict: Verdict::Untouched }])
    }

    /// The verdict, if random choices decide about the endpoint only.
    pub fn verdict(&self) -> Option<&Verdict> {
        match &*self.verdicts {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// Adds the endpoints of `one` to `all` if the verdicts differ only in their endpoints; else returns false.
fn merge(all: &mut Verdict, one: &Verdict) -> bool {
    match (all, one) {
        (
            Verdict::Delivered { to, masqueraded },
            Verdict::Delivered { to: more, masqueraded: masqueraded_too },
        ) if masqueraded == masqueraded_too => {
            to.extend(more);
            true
        }
        (all, one) => all == one,
    }
}

/// A packet between two rules: the fields that rules read and write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PacketState {
    /// The source address.
    pub source: IpAddr,
    /// The current destination address.
    pub destination: IpAddr,
    /// The original destination address.
    pub original: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The current destination port.
    pub port: u16,
    /// The interface it arrived on.
    pub input: Option<String>,
    /// The packet's mark.
    pub mark: u32,
    /// The connection's mark.
    pub connection_mark: u32,
    /// The destination was translated.
    pub translated: bool,
    /// The source was translated.
    pub masqueraded: bool,
    /// It was sent through the loopback interface and arrived again.
    pub looped: bool,
}

impl PacketState {
    /// The packet before the first rule.
    pub fn new(packet: &Packet) -> PacketState {
        PacketState {
            source: packet.source,
            destination: packet.destination,
            original: packet.destination,
            protocol: packet.protocol,
            port: packet.port,
            input: packet.input.clone(),
            mark: 0,
            connection_mark: 0,
            translated: false,
            masqueraded: false,
            looped: false,
        }
    }

    /// Lets the packet arrive again through the loopback interface.
    pub fn loop_back(&mut self) {
        self.looped = true;
        self.input = Some("lo".to_owned());
    }

    /// Changes its destination to an endpoint.
    pub fn translate(&mut self, target: Target) {
        self.destination = target.ip;
        self.port = target.port;
        self.translated = true;
    }

    /// The verdict, if no rule dropped or rejected it.
    pub fn verdict(&self) -> Verdict {
        if !self.translated && !self.masqueraded {
            return Verdict::Untouched;
        }
        let target = Target { ip: self.destination, port: self.port };
        Verdict::Delivered { to: [target].into(), masqueraded: self.masqueraded }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Hook { point, table, chain } => write!(f, "{point}: table {table}, chain {chain}"),
            Step::Rule { chain, index, text, because } => {
                match text {
                    Some(text) => write!(f, "  -A {chain}{text}")?,
                    None => write!(f, "  chain {chain}, rule {}", index + 1)?,
                }
                if because.is_empty() { Ok(()) } else { write!(f, "\n    it is {}", because.join(", ")) }
            }
            Step::NotUnderstood { chain, text } => write!(f, "  passed over: -A {chain}{text}"),
            Step::Found { set, comment, verdict } => {
                write!(f, "    found in {set}")?;
                comment.iter().try_for_each(|c| write!(f, " ({c})"))?;
                verdict.iter().try_for_each(|v| write!(f, ": {v}"))
            }
            Step::Chosen(Chance::Number { number, of }) => write!(f, "    random number {number} of {of}"),
            Step::Chosen(Chance::Probability(p)) => write!(f, "    random choice, probability {p}"),
            Step::Policy => f.write_str("  the policy is DROP"),
            Step::Marked(mark) => write!(f, "    mark becomes {mark:#x}"),
            Step::Accepted { by } => write!(f, "accepted by {by}"),
            Step::Relay(decision) => f.write_str(decision),
            Step::Translated(target) => write!(f, "    destination becomes {target}"),
            Step::Masqueraded => f.write_str("    source becomes the node's"),
            Step::Remembered { list, .. } => write!(f, "    the client is remembered in {list}"),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}
