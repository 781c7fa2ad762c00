//! Renders settings and plans into the table. These functions depend on nothing else, so an incremental change gives
//! the same rules as a start from scratch.

mod affinity;
mod base;
mod dispatch;
mod service;

pub use base::base;
pub(crate) use dispatch::{dispatch, is_dispatch_set};
pub use service::service;
