//! From settings and plans to the table: pure, and the same for the first start and the hundredth change.

mod affinity;
mod base;
mod dispatch;
mod service;

pub use base::base;
pub(crate) use dispatch::{dispatch, is_dispatch_set};
pub use service::service;
