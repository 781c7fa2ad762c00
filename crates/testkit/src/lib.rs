//! Tests that all proxy modes share.
//!
//! [`objects`] builds API objects; [`cluster`] turns them into the plans that a mode is given. Three kinds of cases use
//! them: the [`battery`] (scripts that the lab runs with real packets), the [`packets`] tables (packets followed
//! through the rules in a fake kernel) and the [`properties`], which hold after any [`random`] changes. [`contract`]
//! tests a mode through the interface that the agent uses; [`flows`] builds conntrack entries. [`harness`] runs cases that are not functions with
//! `#[test]`.
//!
//! Only tests depend on this crate. Invalid input panics.

pub use proptest;

pub mod battery;
pub mod cluster;
pub mod contract;
pub mod flows;
pub mod harness;
pub mod mode;
pub mod objects;
pub mod packets;
pub mod properties;
pub mod random;
