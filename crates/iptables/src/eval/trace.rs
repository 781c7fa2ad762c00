//! What was seen on a packet's way, for programs and for people.

use crate::chains::{Chain, Table};
use crate::rules::Probability;
use portway_dataplane::packet::Verdict;
use portway_model::Target;
use std::fmt;
use std::net::IpAddr;

/// Where a packet went and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What becomes of the packet. There are several if chance decides about more than the endpoint: one that
    /// reaches itself through its Service is masqueraded, the others it might have reached are not.
    pub verdicts: Vec<Verdict>,
    /// Each way it may take.
    pub paths: Vec<Path>,
}

/// One way a packet may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// What happened on it.
    pub steps: Vec<Step>,
    /// How it ended.
    pub verdict: Verdict,
}

/// Something that happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It entered a built-in chain.
    Hook {
        /// Of this table.
        table: Table,
        /// The chain.
        chain: &'static str,
    },
    /// A rule concerned it.
    Rule {
        /// In this table.
        table: Table,
        /// In this chain.
        chain: Chain,
        /// From 0.
        index: usize,
        /// What is behind `-A CHAIN`.
        rule: String,
        /// What the packet has that the rule asks for; empty if it asks for nothing.
        because: Vec<String>,
    },
    /// A rule was passed over, for we have no words for what it asks.
    NotUnderstood {
        /// In this table.
        table: Table,
        /// In this chain.
        chain: Chain,
        /// What is behind `-A CHAIN`.
        rule: String,
    },
    /// Chance had that rule concern it.
    Chosen(Probability),
    /// It came to the end of a built-in chain that drops what comes there.
    Policy,
    /// Its mark became this.
    Marked(u32),
    /// A server took it out of the rules' hands.
    Taken(String),
    /// Its destination became this.
    Translated(Target),
    /// Its source became the node's address.
    Masqueraded,
    /// A list of recent clients learnt of its source.
    Remembered {
        /// The list.
        list: String,
        /// The client.
        client: IpAddr,
    },
}

impl Trace {
    pub(super) fn new(paths: Vec<Path>) -> Trace {
        let mut verdicts: Vec<Verdict> = Vec::new();
        for path in &paths {
            if !verdicts.iter_mut().any(|v| absorbs(v, &path.verdict)) {
                verdicts.push(path.verdict.clone());
            }
        }
        Trace { verdicts, paths }
    }

    /// The verdict, if chance decides about nothing but the endpoint.
    pub fn verdict(&self) -> Option<&Verdict> {
        match &*self.verdicts {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// Whether `all` says what `one` does, after adding its endpoints.
fn absorbs(all: &mut Verdict, one: &Verdict) -> bool {
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

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Hook { table, chain } => write!(f, "{chain}, table {table}"),
            Step::Rule { chain, rule, because, .. } => {
                write!(f, "  -A {chain}{rule}")?;
                if because.is_empty() { Ok(()) } else { write!(f, "\n    it is {}", because.join(", ")) }
            }
            Step::NotUnderstood { chain, rule, .. } => write!(f, "  passed over: -A {chain}{rule}"),
            Step::Chosen(probability) => write!(f, "    chance says so, at {probability}"),
            Step::Taken(server) => write!(f, "taken by {server}"),
            Step::Policy => f.write_str("  the policy is DROP"),
            Step::Marked(mark) => write!(f, "    mark becomes {mark:#x}"),
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
