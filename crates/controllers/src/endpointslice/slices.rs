//! The slices of a Service as objects: names, labels, owner and annotations.

use crate::cluster::service::{AddressFamily, ServiceState};
use crate::cluster::slice::{Maintainer, SliceState};
use crate::endpointslice::pack::Content;
use crate::generated;
use crate::key::Key;
use crate::names::{HEADLESS, SERVICE_NAME, SLICE_MANAGED_BY, TRIGGER_TIME};
use portway_api::complete::EndpointSlice;
use portway_api::time::format_rfc3339;
use portway_api::{ObjectMeta, OwnerReference};
use std::collections::HashMap;

/// Builds the slices of one family of a Service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceBuilder<'a> {
    pub(crate) key: &'a Key,
    pub(crate) service: &'a ServiceState,
    pub(crate) family: AddressFamily,
    /// The time of the change that led to the write, in seconds since the epoch.
    pub(crate) trigger: Option<i64>,
}

impl SliceBuilder<'_> {
    /// Whether a slice is one of this Service, or of none. It may also be one of an earlier Service of the same name, or
    /// have been given to another controller.
    pub(crate) fn may_own(&self, slice: &SliceState) -> bool {
        let owners = slice.meta.unpack().owner_references;
        let is_own = |owner: &OwnerReference| *owner.uid == *self.service.uid;
        let is_foreign = |owner: &OwnerReference| owner.kind == "Service" || owner.controller == Some(true);
        owners.iter().any(is_own) || !owners.iter().any(is_foreign)
    }

    /// Whether labels or owner are not what they should be.
    pub(crate) fn metadata_differs(&self, slice: &SliceState) -> bool {
        let meta = slice.meta.unpack();
        let is_owned = meta.owner_references.iter().any(|owner| *owner.uid == *self.service.uid);
        !is_owned || meta.labels != self.labels()
    }

    /// Whether a slice is the one that a Service without endpoints has.
    pub(crate) fn is_placeholder(&self, slice: &SliceState) -> bool {
        slice.endpoints.is_empty() && slice.ports.is_empty() && !self.metadata_differs(slice)
    }

    /// The labels of the Service, without those that have a meaning for slices, and the slice's own.
    fn labels(&self) -> HashMap<String, String> {
        let reserved = [SERVICE_NAME, SLICE_MANAGED_BY, HEADLESS];
        let of_service = self.service.labels.iter().filter(|(name, _)| !reserved.contains(&name.as_str()));
        let mut labels: HashMap<String, String> =
            of_service.map(|(name, value)| (name.clone(), value.clone())).collect();
        labels.insert(SERVICE_NAME.to_owned(), self.key.name().to_owned());
        labels.insert(SLICE_MANAGED_BY.to_owned(), Maintainer::Slices.label().to_owned());
        if self.service.headless {
            labels.insert(HEADLESS.to_owned(), String::new());
        }
        labels
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            kind: "Service".to_owned(),
            name: self.key.name().to_owned(),
            uid: self.service.uid.to_string(),
            api_version: "v1".to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// A new slice. Its name is the same each time it is computed: if the answer to its creation is lost, a second
    /// attempt finds the slice instead of creating another one.
    pub(crate) fn create(&self, content: &Content<'_>, is_taken: impl Fn(&str) -> bool) -> EndpointSlice {
        let prefix = format!("{}-", self.key.name());
        let parts = [self.service.uid.as_bytes(), self.family.name().as_bytes()];
        let name = generated::name(&prefix, &parts, is_taken);
        let meta = ObjectMeta {
            name,
            generate_name: prefix,
            namespace: self.key.namespace().to_owned(),
            ..ObjectMeta::default()
        };
        self.slice(meta, content)
    }

    /// The slice with other content. Annotations, owners and finalizers of others stay.
    pub(crate) fn replace(&self, slice: &SliceState, content: &Content<'_>) -> EndpointSlice {
        self.slice(slice.meta.unpack(), content)
    }

    fn slice(&self, mut meta: ObjectMeta, content: &Content<'_>) -> EndpointSlice {
        meta.labels = self.labels();
        if !meta.owner_references.iter().any(|owner| *owner.uid == *self.service.uid) {
            meta.owner_references.push(self.owner());
        }
        set_trigger(&mut meta, self.trigger);
        EndpointSlice {
            metadata: Some(meta),
            endpoints: content.endpoints.iter().map(|endpoint| endpoint.endpoint()).collect(),
            ports: content.ports.to_vec(),
            address_type: self.family.name().to_owned(),
        }
    }
}

/// Sets the annotation with the time of the change, or removes it.
pub(crate) fn set_trigger(meta: &mut ObjectMeta, trigger: Option<i64>) {
    match trigger {
        Some(seconds) => _ = meta.annotations.insert(TRIGGER_TIME.to_owned(), format_rfc3339(seconds)),
        None => _ = meta.annotations.remove(TRIGGER_TIME),
    }
}
