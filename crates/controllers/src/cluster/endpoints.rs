//! What the controllers keep of an Endpoints object.

use crate::cluster::meta::PackedMeta;
use crate::endpoints::subsets::canonical;
use crate::fingerprint;
use crate::names::{ENDPOINTS_CONTROLLER, ENDPOINTS_MANAGED_BY, LEADER, SKIP_MIRROR};
use portway_api::{EndpointSubset, Endpoints};
use prost::Message;

/// What the controllers keep of an Endpoints object.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointsState {
    /// With annotations, owners and finalizers of others, which a replacement keeps.
    pub(crate) meta: PackedMeta,
    /// The fingerprint of the subsets in canonical form.
    pub(crate) content: u64,
    /// The subsets, encoded, if they may have to be mirrored.
    subsets: Option<Box<[u8]>>,
    managed: bool,
    lock: bool,
    skipped: bool,
}

impl EndpointsState {
    pub(crate) fn new(endpoints: Endpoints, with_subsets: bool) -> EndpointsState {
        let meta = endpoints.metadata.unwrap_or_default();
        let encoded = encode(&canonical(endpoints.subsets));
        EndpointsState {
            meta: PackedMeta::new(&meta),
            content: fingerprint::of(&encoded),
            subsets: with_subsets.then_some(encoded),
            managed: meta.labels.get(ENDPOINTS_MANAGED_BY).is_some_and(|by| by == ENDPOINTS_CONTROLLER),
            lock: meta.annotations.contains_key(LEADER),
            skipped: meta.labels.get(SKIP_MIRROR).is_some_and(|skip| skip == "true"),
        }
    }

    /// Without its subsets, which can be read again.
    pub(crate) fn without_subsets(self) -> EndpointsState {
        EndpointsState { subsets: None, ..self }
    }

    /// Whether the subsets are kept.
    pub(crate) fn has_subsets(&self) -> bool {
        self.subsets.is_some()
    }

    /// The subsets; `None` if they are not kept.
    pub(crate) fn subsets(&self) -> Option<Vec<EndpointSubset>> {
        let bytes = self.subsets.as_ref()?;
        Some(Endpoints::decode(&**bytes).map(|endpoints| endpoints.subsets).unwrap_or_default())
    }

    /// Whether the Endpoints controller maintains it.
    pub(crate) fn is_managed(&self) -> bool {
        self.managed
    }

    /// Whether it is the lock of a leader election.
    pub(crate) fn is_lock(&self) -> bool {
        self.lock
    }

    /// Whether it may be mirrored, if its Service has no selector.
    pub(crate) fn may_be_mirrored(&self) -> bool {
        !self.lock && !self.skipped
    }
}

/// Subsets in canonical form as bytes.
pub(crate) fn encode(subsets: &[EndpointSubset]) -> Box<[u8]> {
    Endpoints { metadata: None, subsets: subsets.to_vec() }.encode_to_vec().into()
}
