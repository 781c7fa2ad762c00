//! The contract between the node agent and a proxy mode.
//!
//! The agent opens a [`Mode`] from its registry and holds a [`Backend`]; it knows nothing else of a mode. A mode that
//! programs the kernel family by family implements [`Program`] and gets its states from [`Driver`], its families and
//! drift detection joined by [`Families`]. [`trace`] is the vocabulary for following a packet.
//!
//! No I/O here: the current time, the network and processes are handed in or belong to the modes.

mod backend;
mod counters;
mod drift;
mod driver;
mod error;
mod families;
mod mode;
mod report;
mod settings;
pub mod trace;

pub use backend::{Backend, Outcome, PlanChanges};
pub use counters::CounterSource;
pub use drift::{CheckTimes, Drift, DriftDetector, DriftSignal, Wake};
pub use driver::{Committed, Driver, Program, State};
pub use error::Error;
pub use families::{Families, FamilyProgram};
pub use mode::{Clear, Features, Location, Mode, OpenOptions, Section};
pub use report::{Refused, Report, TableRules};
pub use settings::{
    Balancing, IpvsSettings, LocalTraffic, NodePortAddresses, Scheduler, Settings, UserspaceSettings,
};
