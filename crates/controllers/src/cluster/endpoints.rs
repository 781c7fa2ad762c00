//! What the controllers keep of an Endpoints object.

use crate::endpoints::subsets::canonical;
use crate::names::{ENDPOINTS_CONTROLLER, ENDPOINTS_MANAGED_BY, LEADER, SKIP_MIRROR};
use portway_api::{EndpointSubset, Endpoints, ObjectMeta};
use prost::Message;

/// What the controllers keep of an Endpoints object.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointsState {
    /// With annotations, owners and finalizers of others, which a replacement keeps.
    pub(crate) meta: ObjectMeta,
    /// The subsets in canonical form, encoded: they are compared, and seldom read.
    pub(crate) subsets: Box<[u8]>,
}

impl EndpointsState {
    pub(crate) fn new(endpoints: Endpoints) -> EndpointsState {
        EndpointsState {
            meta: endpoints.metadata.unwrap_or_default(),
            subsets: encode(&canonical(endpoints.subsets)),
        }
    }

    /// The subsets.
    pub(crate) fn subsets(&self) -> Vec<EndpointSubset> {
        Endpoints::decode(&*self.subsets).map(|endpoints| endpoints.subsets).unwrap_or_default()
    }

    /// Whether the Endpoints controller maintains it.
    pub(crate) fn is_managed(&self) -> bool {
        self.meta.labels.get(ENDPOINTS_MANAGED_BY).is_some_and(|by| by == ENDPOINTS_CONTROLLER)
    }

    /// Whether it is the lock of a leader election.
    pub(crate) fn is_lock(&self) -> bool {
        self.meta.annotations.contains_key(LEADER)
    }

    /// Whether it may be mirrored, if its Service has no selector.
    pub(crate) fn may_be_mirrored(&self) -> bool {
        !self.is_lock() && self.meta.labels.get(SKIP_MIRROR).is_none_or(|skip| skip != "true")
    }
}

/// Subsets in canonical form as bytes.
pub(crate) fn encode(subsets: &[EndpointSubset]) -> Box<[u8]> {
    Endpoints { metadata: None, subsets: subsets.to_vec() }.encode_to_vec().into()
}
