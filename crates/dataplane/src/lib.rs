//! The contract between the node agent and a proxy mode.
//!
//! The agent opens a [`Mode`] from its registry and gets a [`Backend`]; it uses a mode through these two traits only. A
//! mode that programs the kernel family by family implements [`Program`]. [`Driver`] then keeps the state of its rules,
//! and [`Families`] joins the programs of all families and the drift detection to a [`Backend`]. [`trace`] has the
//! types for following a packet through the rules.
//!
//! This crate does no I/O: the caller passes the current time, and the modes access the kernel and processes.

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
