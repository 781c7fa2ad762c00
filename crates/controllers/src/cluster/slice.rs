//! What the controllers keep of an EndpointSlice that one of them maintains.

use crate::cluster::meta::PackedMeta;
use crate::fingerprint::{self, EndpointPrint};
use crate::names::{MIRRORING_CONTROLLER, SERVICE_NAME, SLICE_CONTROLLER, SLICE_MANAGED_BY};
use portway_api::complete::{EndpointPort, EndpointSlice};

/// The controller that maintains a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maintainer {
    /// The EndpointSlice controller.
    Slices,
    /// The mirroring controller.
    Mirroring,
}

impl Maintainer {
    /// The value of the label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Maintainer::Slices => SLICE_CONTROLLER,
            Maintainer::Mirroring => MIRRORING_CONTROLLER,
        }
    }
}

/// What the controllers keep of a slice. Its endpoints are fingerprints: what is written are always the wanted ones.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceState {
    /// With annotations, owners and finalizers of others, which a replacement keeps.
    pub(crate) meta: PackedMeta,
    service: Box<str>,
    pub(crate) maintainer: Maintainer,
    pub(crate) address_type: Box<str>,
    /// Sorted.
    pub(crate) ports: Box<[EndpointPort]>,
    pub(crate) endpoints: Box<[EndpointPrint]>,
}

impl SliceState {
    /// From the object; `None` if another controller or a person maintains it.
    pub(crate) fn new(slice: EndpointSlice) -> Option<SliceState> {
        let meta = slice.metadata.unwrap_or_default();
        let maintainer = match meta.labels.get(SLICE_MANAGED_BY).map(String::as_str) {
            Some(SLICE_CONTROLLER) => Maintainer::Slices,
            Some(MIRRORING_CONTROLLER) => Maintainer::Mirroring,
            _ => return None,
        };
        let print = match maintainer {
            Maintainer::Slices => fingerprint::endpoint,
            Maintainer::Mirroring => fingerprint::mirrored,
        };
        let mut ports = slice.ports;
        ports.sort_unstable();
        Some(SliceState {
            maintainer,
            address_type: slice.address_type.into(),
            ports: ports.into(),
            endpoints: slice.endpoints.iter().map(print).collect(),
            service: meta.labels.get(SERVICE_NAME).map_or("", String::as_str).into(),
            meta: PackedMeta::new(&meta),
        })
    }

    /// The name of its Service.
    pub(crate) fn service(&self) -> &str {
        &self.service
    }
}
