//! Kubernetes client: list and watch of resources at an API server, or of the manifests in a directory; and writes.
//!
//! In: an API server ([`connect`], [`watch`]) or a directory ([`manifests::watch`]). Out: [`Notice`]s in a bounded
//! channel, most of them [`Event`](portway_api::Event)s of the resources that the consumer selected. [`Source`] starts
//! either and is the receiving end of the channel.
//!
//! [`Client`] also gets, creates, replaces, patches and deletes objects of any resource; [`Recorder`] writes
//! Kubernetes Events about objects that could not be programmed, and [`campaign`] takes part in a leader election.
//!
//! What always holds:
//!
//! - First every object of a resource is sent between `Init` and `InitDone`; afterwards only changes. `Init` may be
//!   sent again at any time, also before its `InitDone`: then the list starts over.
//! - An outage never deletes objects: while the API server cannot be reached or the directory is missing, no events are
//!   sent.
//! - An object that cannot be decoded is reported as one [`Rejected`]; all other objects are sent as usual.
//! - Memory is bounded. Responses are decoded object by object as their bytes arrive, and decoding waits while the
//!   channel is full.

mod events;
mod kubernetes;
mod lease;
pub mod manifests;
mod source;

pub use events::{Recorder, Regarding};
pub use kubernetes::{
    Access, Client, ConnectError, DeleteOptions, Encoding, FieldCause, ObjectName, Patch, Propagation,
    Reason, RequestError, RequestStatistics, Selection, Subresource, connect, watch,
};
pub use lease::{Election, Leadership, campaign};
pub use source::{Notice, Outage, OutageReason, Rejected, Sink, Source, Subscriptions, channel};
