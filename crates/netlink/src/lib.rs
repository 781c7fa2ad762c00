//! Netlink: sockets, messages, and the wire formats of the kernel subsystems that Portway uses.
//!
//! [`Socket`] is the only netlink socket, and this is the only crate with `unsafe` code. [`message`] builds and parses
//! netlink messages; [`nft`], [`conntrack`], [`route`], [`ipset`], [`ipvs`] (through [`genl`]) and [`nfacct`] encode
//! typed values to messages and decode them. Legacy [`xtables`] does not use netlink and has its own socket. Decoders
//! never panic: a truncated or missing attribute is a [`DecodeError`], and the fuzz targets feed them random bytes.
//!
//! Numbers of the kernel interface have the kernel's names; the documentation of each module names the header.

pub mod conntrack;
pub mod credentials;
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

pub use error::{DecodeError, Error, Result};
pub use pipeline::Failed;
pub use socket::{Protocol, Socket};
