//! A cluster of network namespaces: nodes, pods and clients outside of the cluster on one machine, with real packets
//! between them.
//!
//! A program calls [`enter()`] at the start of `main`, which gives it the privilege to create namespaces (as an
//! ordinary user through a user namespace) and removes the namespaces and processes of labs that were killed.
//! [`Layout::build`] then builds a [`Lab`] of [`LabHost`]s. [`Server`]s, [`Probe`]s, [`Load`]s and [`Agent`]s run on
//! hosts.
//!
//! Invariant: all namespaces and processes of a lab are removed when it is dropped or, if its process was killed, when
//! the next program calls [`enter()`].

mod agent;
mod answer;
pub mod api;
mod conversation;
mod enter;
mod error;
pub mod guest;
mod host;
mod layout;
mod load;
mod log;
mod namespace;
mod owner;
mod plan;
mod probe;
mod process;
mod reap;
mod server;
mod sysctl;
mod wait;

pub use agent::{Agent, AgentError};
pub use answer::{Protocol, Reply};
pub use conversation::{Conversation, Failure};
pub use enter::{EnterError, Privilege, enter};
pub use error::LabError;
pub use host::{LabHost, Role};
pub use layout::{Lab, Layout};
pub use load::{Load, LoadReport};
pub use log::{Log, LogLine, line_has_level};
pub use namespace::Namespace;
pub use probe::{Answers, Outcome, Probe};
pub use process::Process;
pub use reap::{Reaped, reap};
pub use server::{Port, Server};
pub use wait::{GaveUp, eventually};
