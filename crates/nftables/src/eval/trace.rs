//! What was seen on a packet's way, for programs and for people.

use crate::table::Name;
use portway_dataplane::packet::Verdict;
use portway_model::Target;
use portway_netlink::nft::{self, Element, HookPoint, Key};
use std::fmt;

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
    /// It entered a base chain.
    Hook {
        /// Where in its path.
        point: HookPoint,
        /// The chain.
        chain: Name,
    },
    /// A rule concerned it.
    Rule {
        /// In this chain.
        chain: Name,
        /// From 0.
        index: usize,
    },
    /// That rule found it in a set or map.
    Found {
        /// The set.
        set: Name,
        /// The element's comment: whose it is.
        comment: Option<String>,
        /// What a verdict map said.
        verdict: Option<nft::Verdict>,
    },
    /// A random number was drawn.
    Chosen {
        /// The number.
        number: u32,
        /// Out of so many.
        of: u32,
    },
    /// Its destination became this.
    Translated(Target),
    /// Its source became the node's address.
    Masqueraded,
    /// A dynamic set learnt of its client.
    Remembered {
        /// The set.
        set: Name,
        /// The client.
        client: Key,
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

/// What nft's user data says of an element: type 0, length, text.
pub(super) fn comment(element: &Element) -> Option<String> {
    match element.userdata.as_deref()? {
        [0, len, text @ ..] => {
            let text = text.get(..(*len as usize).checked_sub(1)?)?;
            Some(String::from_utf8_lossy(text).into_owned())
        }
        _ => None,
    }
}

fn hook_name(point: HookPoint) -> &'static str {
    match point {
        HookPoint::Prerouting => "prerouting",
        HookPoint::Input => "input",
        HookPoint::Forward => "forward",
        HookPoint::Output => "output",
        HookPoint::Postrouting => "postrouting",
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Hook { point, chain } => write!(f, "{}: chain {chain}", hook_name(*point)),
            Step::Rule { chain, index } => write!(f, "  chain {chain}, rule {}", index + 1),
            Step::Found { set, comment, verdict } => {
                write!(f, "    found in {set}")?;
                comment.iter().try_for_each(|c| write!(f, " ({c})"))?;
                verdict.iter().try_for_each(|v| write!(f, ": {v}"))
            }
            Step::Chosen { number, of } => write!(f, "    chance says {number} of {of}"),
            Step::Translated(target) => write!(f, "    destination becomes {target}"),
            Step::Masqueraded => f.write_str("    source becomes the node's"),
            Step::Remembered { set, .. } => write!(f, "    the client is remembered in {set}"),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}
