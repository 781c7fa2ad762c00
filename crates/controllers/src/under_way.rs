//! Objects that are being written, and whether their deletion was seen meanwhile: the answer to a write that arrives
//! after the event of a later deletion must not bring the object back.

use crate::key::Key;
use portway_api::ResourceType;
use std::collections::HashMap;

/// An object of a resource.
pub(crate) type ObjectId = (ResourceType, Key);

/// Objects that are being written or read. Several controllers may have work on one object at a time.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(HashMap<ObjectId, State>);

#[derive(Debug, Default)]
struct State {
    users: usize,
    deleted: bool,
}

impl UnderWay {
    /// Work on these objects begins.
    pub(crate) fn begin(&mut self, objects: impl IntoIterator<Item = ObjectId>) {
        for id in objects {
            self.0.entry(id).or_default().users += 1;
        }
    }

    /// Work on these objects has ended.
    pub(crate) fn end(&mut self, objects: &[ObjectId]) {
        for id in objects {
            if let Some(state) = self.0.get_mut(id) {
                state.users -= 1;
                if state.users == 0 {
                    self.0.remove(id);
                }
            }
        }
    }

    /// The deletion of an object was seen.
    pub(crate) fn deleted(&mut self, resource: ResourceType, key: Key) {
        if let Some(state) = self.0.get_mut(&(resource, key)) {
            state.deleted = true;
        }
    }

    /// Whether an object was deleted since the work on it began.
    pub(crate) fn was_deleted(&self, resource: ResourceType, key: &Key) -> bool {
        self.0.get(&(resource, key.clone())).is_some_and(|state| state.deleted)
    }
}
