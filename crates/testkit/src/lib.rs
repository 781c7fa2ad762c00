//! What every proxy mode is tested with.
//!
//! [`objects`] builds API objects; [`cluster`] turns them into the plans that a mode is given. On these rest the three kinds
//! of cases: the [`battery`] (scripts that the lab runs with real packets), the [`packets`] tables (packets followed through
//! the rules in a fake kernel) and the [`properties`], which hold whatever [`random`] changes happen. [`harness`] runs
//! cases that are not functions with `#[test]`.
//!
//! Only tests depend on this crate. Input that makes no sense panics.

pub use proptest;

pub mod battery;
pub mod cluster;
pub mod contract;
pub mod harness;
pub mod mode;
pub mod objects;
pub mod packets;
pub mod properties;
pub mod random;
