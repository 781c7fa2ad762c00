//! Where events come from: an API server's list and watch, or a directory of manifests.
//!
//! In: an API server ([`connect`], [`watch`]) or a directory ([`manifests::watch`]). Out: [`Notice`]s in a bounded
//! channel, most of them [`Event`](portway_model::api::Event)s. [`Source`] starts either and hands out the
//! receiving end. [`Recorder`] goes the other way: it writes Kubernetes Events about objects that could not be
//! served.
//!
//! What always holds:
//!
//! - Everything of a kind is sent between `Init(kind)` and `InitDone(kind)` first; afterwards only what changed.
//!   `Init` may come again at any time, also before its `InitDone`: then the list starts over.
//! - Trouble never takes anything away: while the API server or the directory is gone there are no events at all.
//! - One bad object is one [`Rejected`], and the others go on.
//! - Nothing piles up. Responses are decoded object by object as their bytes arrive, and the next one is not
//!   decoded before there is room in the channel.

mod events;
mod kubernetes;
pub mod manifests;
mod source;

pub use events::{Recorder, Regarding};
pub use kubernetes::{Access, Client, ConnectError, Encoding, Selection, connect, watch};
pub use source::{Cause, Notice, Rejected, Source, Trouble};
