//! From settings and plans to the table: pure, and the same for the first start and the hundredth change.

mod affinity;
mod base;
mod service;

pub(crate) use affinity::memories;
pub use base::base;
pub use service::service;
