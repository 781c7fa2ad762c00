//! What every proxy mode has in common: the contract it fulfils, the words for a packet and its fate, and the
//! battery of behaviours it is tested with.
//!
//! Pure: no clock, no I/O. A mode implements [`Dataplane`] for one address family; the agent holds one per family
//! and never knows which mode it is.
//!
//! With the feature `testing` there is also what every mode's own tests share: a `world` to program, the tables of
//! `packets` to follow through its rules, and the random `acts` its properties must survive.

#[cfg(feature = "testing")]
pub mod acts;
pub mod battery;
mod contract;
pub mod packet;
#[cfg(feature = "testing")]
pub mod packets;
mod settings;
#[cfg(feature = "testing")]
pub mod world;

pub use contract::{Clear, Dataplane, Drift, Error, Refused, Report, TableRules};
pub use settings::{
    Balancing, IpvsSettings, LocalTraffic, NodePortAddresses, Scheduler, Settings, UserspaceSettings,
};
