//! Packets to follow through a mode's rules: which sender reaches which endpoint, and with which source address.
//!
//! A [`Case`] is a script for the [test cluster](crate::cluster): the objects, the packets, and the verdict that each
//! packet must have. It does not depend on a mode. A mode implements [`FakeNode`]; [`main`] then runs one test for each
//! case and family. A row in which a mode legitimately has another verdict is an [`Exception`] of that mode, and
//! behaviour that only one mode has is a case of its own. The [battery](crate::battery) tests the same behaviour with
//! real kernels and real packets.
//!
//! Each row is `(from, to, verdict)`. `from` may have an interface after a `%`, `to` a protocol after a `/`. Endpoints
//! are printed as the names of their hosts, with the port unless it is 8080: `a b masqueraded`, `b:5353`, `rejected`,
//! `dropped`, `untouched`; several verdicts between which the rules choose at random are joined with `or`.

/// Cases named after their functions, prefixed with the name of the table.
#[macro_export]
macro_rules! packet_cases {
    ($table:literal: $($script:ident),* $(,)?) => {
        &[$($crate::packets::Case { name: concat!($table, "::", stringify!($script)), script: $script }),*]
    };
}

mod affinity;
mod cluster_ips;
mod external;
mod run;
mod sources;
mod text;

pub use affinity::service_with_affinity;
pub use run::{Exception, main, tests};
pub use text::{outcome, packet};

use crate::cluster::{TestCluster, settings};
use crate::mode::FamilyMode;
use portway_dataplane::Settings;
use portway_dataplane::trace::{Packet, Verdict};
use portway_model::Family;

/// `(from, to, verdict)`.
pub type Row = (&'static str, &'static str, &'static str);

/// One behaviour.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Builds its scenarios; called once for each family.
    pub script: fn() -> Vec<Scenario>,
}

/// A node that is programmed for a cluster, and the steps that follow.
#[derive(Debug)]
pub struct Scenario {
    /// The cluster at the beginning.
    pub cluster: TestCluster,
    /// The node's settings.
    pub settings: Settings,
    /// The families in which it is run.
    pub families: Vec<Family>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// A step of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A packet arrives, and must have this verdict.
    Packet(Row),
    /// A client's connection goes to one of the allowed endpoints, and the kernel stores the affinity that the rules
    /// request.
    Connect {
        /// The client.
        from: &'static str,
        /// The frontend.
        to: &'static str,
        /// The host of the endpoint.
        host: &'static str,
    },
    /// A Service gets these endpoints.
    Endpoints {
        /// Its name.
        service: &'static str,
        /// The hosts of the endpoints.
        hosts: Vec<&'static str>,
    },
}

impl Scenario {
    /// With the usual settings, in both families.
    pub fn new(cluster: TestCluster, rows: &[Row]) -> Scenario {
        Scenario { cluster, settings: settings(), families: Family::ALL.to_vec(), steps: Vec::new() }
            .rows(rows)
    }

    /// With other settings.
    pub fn with(self, settings: Settings) -> Scenario {
        Scenario { settings, ..self }
    }

    /// In one family only.
    pub fn only(self, family: Family) -> Scenario {
        Scenario { families: vec![family], ..self }
    }

    /// Then these packets arrive.
    pub fn rows(mut self, rows: &[Row]) -> Scenario {
        self.steps.extend(rows.iter().copied().map(Step::Packet));
        self
    }

    /// Then a client's connection goes to an endpoint.
    pub fn connect(mut self, from: &'static str, to: &'static str, host: &'static str) -> Scenario {
        self.steps.push(Step::Connect { from, to, host });
        self
    }

    /// Then the endpoints of a Service change.
    pub fn endpoints(mut self, service: &'static str, hosts: &[&'static str]) -> Scenario {
        self.steps.push(Step::Endpoints { service, hosts: hosts.to_vec() });
        self
    }
}

/// A node with a mode over a fake kernel; each mode implements it to run the packet tables.
pub trait FakeNode {
    /// A node without rules, which has the addresses of [`own_addresses`](crate::cluster::own_addresses).
    fn open(family: Family) -> Self;

    /// The mode.
    fn mode(&mut self) -> &mut dyn FamilyMode;

    /// Follows the first packet of a connection through the contents of the kernel. Nothing changes.
    fn follow(&mut self, packet: &Packet) -> Followed;

    /// Stores in the kernel the affinity that the rules on the `n`th of the paths of [`FakeNode::follow`] request.
    /// Returns whether they request any.
    fn store_affinity(&mut self, packet: &Packet, n: usize) -> bool;
}

/// All paths that a packet may take, and their verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Its verdict; several if a random choice determines more than the endpoint.
    pub verdicts: Vec<Verdict>,
    /// Each path it may take.
    pub paths: Vec<Path>,
}

/// One path that a packet may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// How it ends.
    pub verdict: Verdict,
    /// The rules on it, as text.
    pub steps: String,
}

/// All cases of the tables.
pub fn cases() -> Vec<Case> {
    [cluster_ips::CASES, external::CASES, sources::CASES, affinity::CASES].concat()
}
