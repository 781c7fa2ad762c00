//! Netlink: sockets, messages, and the wire formats of the kernel subsystems Portway speaks to.
//!
//! [`Socket`] is the one door to the kernel, and this crate is the one that may write `unsafe`. Everything above
//! it works on bytes: [`message`] builds and walks netlink messages, [`nft`], [`conntrack`], [`route`], [`ipset`],
//! [`ipvs`] (through [`genl`]) and [`nfacct`] turn typed values into messages and back. Legacy [`xtables`] speaks no
//! netlink; it has a socket of its own. The decoders trust nothing: they are fed by the kernel, but also by the
//! fuzzer, and an attribute that is short or missing is an error value, never a panic.

pub mod conntrack;
mod error;
pub mod genl;
pub mod ipset;
pub mod ipvs;
pub mod message;
pub mod namespace;
pub mod nfacct;
pub mod nft;
mod pipeline;
pub mod route;
mod socket;
pub mod xtables;

pub use error::{Error, Malformed, Result};
pub use pipeline::Failed;
pub use socket::{Protocol, Socket};
