//! The battery: behaviours that every mode must have, tested with real packets.
//!
//! A [`Case`] is a script: objects to apply, probes to send, and the result that each must have. It does not depend on
//! a mode or on the lab that runs it; a [`LabNetwork`] has the addresses, so that every case runs in both families.
//!
//! The lab has two nodes with two pods each (`pod1a`, `pod1b` on `node1`; `pod2a`, `pod2b` on `node2`), every pod
//! serving TCP and UDP on [`PORT`] and [`OTHER_PORT`], and a client outside of the cluster whose traffic to Service
//! addresses goes through `node1`.

mod affinity;
mod basics;
mod external;
mod faults;
mod flows;
mod from_pods;
mod internal;
mod network;
mod node_ports;
mod ports;
mod sources;
mod topology;

pub use network::LabNetwork;

use crate::objects::Manifest;
use portway_model::Protocol;
use std::net::SocketAddr;
use std::time::Duration;

/// A port that every pod serves, in TCP and UDP.
pub const PORT: u16 = 8080;
/// Another port that every pod serves, in TCP and UDP.
pub const OTHER_PORT: u16 = 9090;

/// One behaviour.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Its script, for a family's addresses.
    pub script: fn(&LabNetwork) -> Script,
}

/// The flags and steps of a case.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Flags for the agents, which replace the usual flags of the same name.
    pub flags: Vec<String>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

impl Script {
    /// These steps, with the usual flags.
    pub fn steps(steps: Vec<Step>) -> Script {
        Script { flags: Vec::new(), steps }
    }

    /// With these flags.
    pub fn flags(mut self, flags: &[&str]) -> Script {
        self.flags = flags.iter().map(|f| (*f).to_owned()).collect();
        self
    }
}

/// The host that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A pod.
    Pod(&'static str),
    /// A node itself.
    Node(usize),
    /// The client outside of the cluster.
    Client,
}

/// The result that a probe must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Each of these pods answers, and no other; all see this source address.
    Spread(Vec<&'static str>, Source),
    /// One of these pods answers every time.
    Sticks(Vec<&'static str>),
    /// The connection is refused.
    Refused,
    /// No answer arrives in time.
    TimedOut,
}

/// The source address that an endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The sender's address.
    Own,
    /// An address of this node.
    Node(usize),
    /// Any address.
    Any,
}

/// A change that another process makes to the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// All rules of the host are flushed.
    FlushEverything,
    /// The rules of Portway's chains are flushed; the chains stay.
    FlushRules,
    /// A rule is added to one of Portway's chains.
    AddRule,
    /// Some objects that a Service needs are removed.
    RemoveObjects,
}

/// One step of a script.
#[derive(Clone, Debug)]
pub enum Step {
    /// An object is created or changed, for all agents.
    Apply(Box<Manifest>),
    /// A Service is deleted.
    DeleteService(&'static str),
    /// An EndpointSlice is deleted.
    DeleteSlice(&'static str),
    /// Connects to an address repeatedly, until the result is the expected one or the time is over.
    Probe {
        /// The sender.
        from: Sender,
        /// The destination.
        to: SocketAddr,
        /// The protocol.
        protocol: Protocol,
        /// The result.
        expect: Expect,
    },
    /// The same with one attempt after each pause, for state of a client that expires.
    ProbeAfterPauses {
        /// How long the client sends nothing.
        pause: Duration,
        /// The sender.
        from: Sender,
        /// The destination.
        to: SocketAddr,
        /// The result, eventually.
        expect: Expect,
    },
    /// Opens a connection or a UDP flow that later steps use.
    Open {
        /// Its name.
        id: &'static str,
        /// The sender.
        from: Sender,
        /// The destination.
        to: SocketAddr,
        /// The protocol.
        protocol: Protocol,
    },
    /// Sends on an open connection or flow until the result is the expected one.
    Ask {
        /// Its name.
        id: &'static str,
        /// The result.
        expect: Expect,
    },
    /// A load balancer checks the health of a Service.
    Health {
        /// The node.
        node: usize,
        /// The port.
        port: u16,
        /// The HTTP status.
        status: u16,
        /// The number of endpoints in the answer.
        local_endpoints: usize,
    },
    /// While these steps run, new connections are made at a steady rate, and none may fail.
    UnderLoad {
        /// The sender.
        from: Sender,
        /// The destination.
        to: SocketAddr,
        /// The steps.
        steps: Vec<Step>,
    },
    /// The agents are killed with SIGKILL.
    KillAgents,
    /// The agents are asked to stop with SIGTERM.
    StopAgents,
    /// The agents are started again.
    StartAgents,
    /// Another process changes the rules of a node.
    Tamper(usize, Tamper),
    /// Time passes.
    Wait(Duration),
}

/// All cases, by subject.
pub const SECTIONS: &[(&str, &[Case])] = &[
    ("basics", basics::CASES),
    ("internal", internal::CASES),
    ("external", external::CASES),
    ("node_ports", node_ports::CASES),
    ("affinity", affinity::CASES),
    ("topology", topology::CASES),
    ("ports", ports::CASES),
    ("sources", sources::CASES),
    ("flows", flows::CASES),
    ("faults", faults::CASES),
];

/// Further cases, for input of Pods only, from which controllers make the slices.
pub const FROM_PODS: &[(&str, &[Case])] = &[("from_pods", from_pods::CASES)];

/// All cases.
pub fn cases() -> Vec<Case> {
    SECTIONS.iter().flat_map(|(_, cases)| *cases).copied().collect()
}

/// A step that creates or changes an object.
fn apply(object: impl Into<Manifest>) -> Step {
    Step::Apply(Box::new(object.into()))
}

/// A TCP probe.
fn tcp(from: Sender, to: SocketAddr, expect: Expect) -> Step {
    Step::Probe { from, to, protocol: Protocol::Tcp, expect }
}

/// A UDP probe.
fn udp(from: Sender, to: SocketAddr, expect: Expect) -> Step {
    Step::Probe { from, to, protocol: Protocol::Udp, expect }
}

/// Every one of these pods answers.
fn all(pods: &[&'static str], source: Source) -> Expect {
    Expect::Spread(pods.to_vec(), source)
}

const POD1: Sender = Sender::Pod("pod1a");
const POD2: Sender = Sender::Pod("pod2a");
const NODE1: Sender = Sender::Node(1);
const NODE2: Sender = Sender::Node(2);
const CLIENT: Sender = Sender::Client;
/// All pods of the lab.
const PODS: &[&str] = &["pod1a", "pod1b", "pod2a", "pod2b"];
