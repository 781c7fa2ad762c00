//! What every proxy mode has in common: the contract it fulfils, the words for a packet and its fate, and the
//! battery of behaviours it is tested with.
//!
//! Pure: no clock, no I/O. A mode implements [`Dataplane`] for one address family; the agent holds one per family
//! and never knows which mode it is.

pub mod battery;
mod contract;
pub mod packet;
mod settings;

pub use contract::{Clear, Dataplane, Drift, Error, Refused, Report, TableRules};
pub use settings::{LocalTraffic, NodePortAddresses, Settings};
