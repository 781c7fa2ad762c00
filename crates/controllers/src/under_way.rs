//! Objects that are being written, and whether their deletion was seen meanwhile: the answer to a write that arrives
//! after the event of a later deletion must not bring the object back.

use crate::key::Key;
use portway_api::ResourceType;
use std::collections::HashMap;

/// An object of a resource.
pub(crate) type ObjectId = (ResourceType, Key);

/// Objects that are being written.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(HashMap<ObjectId, bool>);

impl UnderWay {
    /// Writes of these objects begin.
    pub(crate) fn begin(&mut self, objects: impl IntoIterator<Item = ObjectId>) {
        self.0.extend(objects.into_iter().map(|id| (id, false)));
    }

    /// Writes of these objects have ended.
    pub(crate) fn end(&mut self, objects: &[ObjectId]) {
        objects.iter().for_each(|id| _ = self.0.remove(id));
    }

    /// The deletion of an object was seen.
    pub(crate) fn deleted(&mut self, resource: ResourceType, key: Key) {
        if let Some(deleted) = self.0.get_mut(&(resource, key)) {
            *deleted = true;
        }
    }

    /// Whether an object was deleted since its write began.
    pub(crate) fn was_deleted(&self, resource: ResourceType, key: &Key) -> bool {
        self.0.get(&(resource, key.clone())) == Some(&true)
    }
}
