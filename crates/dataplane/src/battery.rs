//! The battery: one table of behaviours that every mode has to pass, with real packets.
//!
//! A [`Case`] is a script: objects to apply, probes to send, and what must come of them. It knows nothing of a mode
//! or of the lab that plays it; addresses come in through [`Net`], so that every case runs for both families.
//! SEMANTICS speaks of the same things in the same order.
//!
//! The stage: two nodes with two pods each (`pod1a`, `pod1b` on `node1`; `pod2a`, `pod2b` on `node2`), every pod
//! serving TCP and UDP on [`PORT`] and [`OTHER_PORT`], and an outside client whose traffic to Service addresses
//! comes in through `node1`.

mod affinity;
mod basics;
mod external;
mod faults;
mod flows;
mod internal;
mod names;
mod nodes;
mod objects;
mod sources;
mod topology;

pub use objects::{Ep, Net, Svc, node_object, service_cidr};

use portway_model::Protocol;
use portway_model::api::{Kind, Object};
use std::net::SocketAddr;
use std::time::Duration;

/// The port every pod serves, in TCP and UDP.
pub const PORT: u16 = 8080;
/// Another one.
pub const OTHER_PORT: u16 = 9090;

/// One behaviour.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// Its script, for a family's addresses.
    pub script: fn(&Net) -> Script,
}

/// What happens in a case.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Flags for the agents besides the usual ones; one that is given replaces the usual one.
    pub flags: Vec<String>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

impl Script {
    /// These steps, with agents as usual.
    pub fn steps(steps: Vec<Step>) -> Script {
        Script { flags: Vec::new(), steps }
    }

    /// With these flags.
    pub fn flags(mut self, flags: &[&str]) -> Script {
        self.flags = flags.iter().map(|f| (*f).to_owned()).collect();
        self
    }
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A pod.
    Pod(&'static str),
    /// A node itself.
    Node(usize),
    /// The client outside of the cluster.
    Client,
}

/// What must come of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Each of these answers, and nobody else, and all see this source.
    Spread(Vec<&'static str>, Source),
    /// One of these answers every time.
    Sticks(Vec<&'static str>),
    /// It is refused.
    Refused,
    /// Nothing comes back.
    TimedOut,
}

/// Whose address an endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The sender's own.
    Own,
    /// One of this node's.
    Node(usize),
    /// Whoever's.
    Any,
}

/// Somebody else's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// All rules are flushed, whoever's they are.
    FlushEverything,
    /// The rules in our chains are gone, the chains are left.
    FlushRules,
    /// A rule of somebody else's in the middle of ours.
    AddRule,
    /// Part of what a Service needs is gone.
    RemovePart,
}

/// One step of a script.
#[derive(Clone, Debug)]
pub enum Step {
    /// An object appears or changes, for all agents.
    Apply(Box<Object>),
    /// An object in namespace `default` goes.
    Delete(Kind, String),
    /// Attempts to reach an address, until what is expected has come of them or patience runs out.
    Probe {
        /// Who.
        from: Place,
        /// Where.
        to: SocketAddr,
        /// How.
        protocol: Protocol,
        /// What must come of it.
        expect: Expect,
    },
    /// The same with one attempt after each pause, for what only silence brings about.
    ProbeAfterPauses {
        /// How long nothing is sent.
        pause: Duration,
        /// Who.
        from: Place,
        /// Where.
        to: SocketAddr,
        /// What must come of it, sooner or later.
        expect: Expect,
    },
    /// Opens a conversation that later steps go on with.
    Open {
        /// What it is called.
        id: &'static str,
        /// Who.
        from: Place,
        /// With whom.
        to: SocketAddr,
        /// How.
        protocol: Protocol,
    },
    /// Says something in a conversation until an answer, or refusal, is as expected.
    Ask {
        /// Which conversation.
        id: &'static str,
        /// What must come back.
        expect: Expect,
    },
    /// A load balancer asks for a Service's health.
    Health {
        /// Which node it asks.
        node: usize,
        /// At which port.
        port: u16,
        /// The HTTP status.
        status: u16,
        /// How many endpoints it must be told of.
        local_endpoints: usize,
    },
    /// While these steps happen, new connections are made steadily, and none may fail.
    UnderLoad {
        /// Who.
        from: Place,
        /// Where.
        to: SocketAddr,
        /// Meanwhile.
        steps: Vec<Step>,
    },
    /// The agents are killed, without a chance to say goodbye.
    KillAgents,
    /// The agents are asked to stop.
    StopAgents,
    /// The agents are started again.
    StartAgents,
    /// Somebody interferes on a node.
    Tamper(usize, Tamper),
    /// Time passes.
    Wait(Duration),
}

/// All behaviours, by what they are about.
pub const SECTIONS: &[(&str, &[Case])] = &[
    ("basics", basics::CASES),
    ("internal", internal::CASES),
    ("external", external::CASES),
    ("nodes", nodes::CASES),
    ("affinity", affinity::CASES),
    ("topology", topology::CASES),
    ("names", names::CASES),
    ("sources", sources::CASES),
    ("flows", flows::CASES),
    ("faults", faults::CASES),
];

/// All behaviours.
pub fn cases() -> Vec<Case> {
    SECTIONS.iter().flat_map(|(_, cases)| *cases).copied().collect()
}

/// An object appears.
fn apply(object: impl Into<Object>) -> Step {
    Step::Apply(Box::new(object.into()))
}

/// A TCP probe.
fn tcp(from: Place, to: SocketAddr, expect: Expect) -> Step {
    Step::Probe { from, to, protocol: Protocol::Tcp, expect }
}

/// A UDP probe.
fn udp(from: Place, to: SocketAddr, expect: Expect) -> Step {
    Step::Probe { from, to, protocol: Protocol::Udp, expect }
}

/// Every one of these pods answers.
fn all(pods: &[&'static str], source: Source) -> Expect {
    Expect::Spread(pods.to_vec(), source)
}

const POD1: Place = Place::Pod("pod1a");
const POD2: Place = Place::Pod("pod2a");
const NODE1: Place = Place::Node(1);
const NODE2: Place = Place::Node(2);
const CLIENT: Place = Place::Client;
/// All pods of the stage.
const PODS: &[&str] = &["pod1a", "pod1b", "pod2a", "pod2b"];
