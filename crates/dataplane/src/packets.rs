//! Packets to follow through a mode's rules: who reaches what, from where, and under whose address.
//!
//! A [`Case`] is a script for the [world](crate::world) of tests: what there is, which packets come, what must become
//! of each. It knows nothing of a mode. A mode takes part by being a [`Machine`]; [`tests`] then gives one test for
//! each case and family. Where a mode legitimately ends elsewhere it says so in a table of [`Differs`], and what it
//! alone can do is a case of its own. The [battery](crate::battery) asks the same of real kernels, with real packets.
//!
//! Each row is `(from, to, what becomes of it)`. `from` may name the interface behind a `%`, `to` the protocol behind
//! a `/`. Endpoints are told by their places, those at port 8080 without the port: `a b masqueraded`, `b:5353`,
//! `rejected`, `dropped`, `untouched`; several that chance decides between are joined with `or`.

/// Cases that are called what their functions are, behind the name of the table.
macro_rules! named {
    ($table:literal: $($script:ident),* $(,)?) => {
        &[$(Case { name: concat!($table, "::", stringify!($script)), script: $script }),*]
    };
}

mod affinity;
mod cluster_ips;
mod external;
mod play;
mod sources;
mod words;

pub use affinity::sticky;
pub use external::everything;
pub use play::{Differs, Test, tests};
pub use words::{outcome, packet};

use crate::packet::{Packet, Verdict};
use crate::world::{World, settings};
use crate::{Dataplane, Settings};
use portway_model::Family;

/// `(from, to, what becomes of it)`.
pub type Row = (&'static str, &'static str, &'static str);

/// One behaviour.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it is called.
    pub name: &'static str,
    /// What happens, each scene on a machine of its own. It is asked for anew for each family.
    pub script: fn() -> Vec<Scene>,
}

/// A machine that is programmed from nothing, and what happens to it.
#[derive(Debug)]
pub struct Scene {
    /// What there is to begin with.
    pub world: World,
    /// The node's settings.
    pub settings: Settings,
    /// Where it holds.
    pub families: Vec<Family>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A packet comes, and this must become of it.
    Packet(Row),
    /// A client's connection goes to one of the places that it may go to, and the kernel remembers of it whatever the
    /// rules say.
    Meets {
        /// Who.
        from: &'static str,
        /// Where it believes to go.
        to: &'static str,
        /// Where it does.
        place: &'static str,
    },
    /// A Service has these endpoints from now on.
    Endpoints {
        /// Its name.
        service: &'static str,
        /// Where they are.
        places: Vec<&'static str>,
    },
}

impl Scene {
    /// With the usual settings, in both families.
    pub fn new(world: World, rows: &[Row]) -> Scene {
        Scene { world, settings: settings(), families: Family::ALL.to_vec(), steps: Vec::new() }.rows(rows)
    }

    /// With other settings.
    pub fn with(self, settings: Settings) -> Scene {
        Scene { settings, ..self }
    }

    /// In one family only.
    pub fn only(self, family: Family) -> Scene {
        Scene { families: vec![family], ..self }
    }

    /// Then these packets come.
    pub fn rows(mut self, rows: &[Row]) -> Scene {
        self.steps.extend(rows.iter().copied().map(Step::Packet));
        self
    }

    /// Then a connection goes to a place, and is remembered.
    pub fn meets(mut self, from: &'static str, to: &'static str, place: &'static str) -> Scene {
        self.steps.push(Step::Meets { from, to, place });
        self
    }

    /// Then a Service's endpoints change.
    pub fn endpoints(mut self, service: &'static str, places: &[&'static str]) -> Scene {
        self.steps.push(Step::Endpoints { service, places: places.to_vec() });
        self
    }
}

/// A node with a mode at work, over a kernel that is a value: what a mode implements to take part.
///
/// A new one has no rules, and the addresses that [`own_addresses`](crate::world::own_addresses) says.
pub trait Machine {
    /// The mode.
    fn mode(&mut self) -> &mut dyn Dataplane;

    /// Follows the first packet of a connection through what the kernel holds. Nothing changes.
    fn follow(&mut self, packet: &Packet) -> Followed;

    /// The packet takes the `n`th of the ways that [`Machine::follow`] told, and the kernel remembers the client as the
    /// rules on it say. Whether they say anything.
    fn remember(&mut self, packet: &Packet, n: usize) -> bool;
}

/// Where a packet may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// What becomes of it; several if chance decides about more than the endpoint.
    pub verdicts: Vec<Verdict>,
    /// Each way it may take.
    pub ways: Vec<Way>,
}

/// One way a packet may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// How it ends.
    pub verdict: Verdict,
    /// What happens on it, for people.
    pub steps: String,
}

/// All behaviours.
pub fn cases() -> Vec<Case> {
    [cluster_ips::CASES, external::CASES, sources::CASES, affinity::CASES].concat()
}
