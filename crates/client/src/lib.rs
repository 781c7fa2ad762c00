//! Where events come from: an API server's list and watch, or a directory of manifests.
//!
//! In: an API server ([`connect`], [`watch`]) or a directory ([`manifests::watch`]). Out: [`Notice`]s in a bounded
//! channel, most of them [`Event`](portway_api::Event)s of the resources that the consumer asked for. [`Source`] starts
//! either and hands out the receiving end.
//!
//! The other way, [`Client`] gets, creates, replaces, patches and deletes objects of any resource; [`Recorder`] writes
//! Kubernetes Events about objects that could not be served, and [`campaign`] takes part in a leader election.
//!
//! What always holds:
//!
//! - Every object of a resource is sent between `Init` and `InitDone` first; afterwards only changes. `Init` may come
//!   again at any time, also before its `InitDone`: then the list starts over.
//! - An outage never removes anything: while the API server or the directory is gone there are no events at all.
//! - One bad object is one [`Rejected`], and the others go on.
//! - Memory is bounded. Responses are decoded object by object as their bytes arrive, and the next one is not decoded
//!   before there is room in the channel.

mod events;
mod kubernetes;
mod lease;
pub mod manifests;
mod source;

pub use events::{Recorder, Regarding};
pub use kubernetes::{
    Access, Client, ConnectError, DeleteOptions, Encoding, FieldCause, ObjectName, Part, Patch, Propagation,
    Reason, RequestError, Selection, connect, watch,
};
pub use lease::{Election, Leadership, campaign};
pub use source::{Notice, Outage, OutageReason, Rejected, Sink, Source, Subscriptions, channel};
