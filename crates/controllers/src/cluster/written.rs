//! The objects that controllers write: slices and Endpoints objects, from their events and from the answers to writes.

use super::endpoints::EndpointsState;
use super::meta::version;
use super::slice::SliceState;
use super::{Cause, Cluster, Touched};
use crate::key::Key;
use portway_api::complete::EndpointSlice;
use portway_api::{Applied, Endpoints, Event};

impl Cluster {
    /// Stores a slice as the answer to a write has it, unless a newer version is known. Adds the Service to `touched` if
    /// that is a change.
    pub fn slice_written(&mut self, slice: EndpointSlice, touched: &mut Vec<Touched>) {
        let key = Key::of(&slice);
        let answered = slice.metadata.as_ref().map(version).unwrap_or_default();
        let known = self.slices.get(&key).map(|stored| stored.meta.version);
        if known.is_some_and(|known| known >= answered) {
            return;
        }
        match SliceState::new(slice) {
            Some(state) => {
                let by = Cause::Slice(state.maintainer);
                touched.push(Touched { key: Key::new(key.namespace(), state.service()), by });
                self.put_slice(key, state);
            }
            None => {
                self.remove_slice(&key);
                self.taken_names.insert(key);
            }
        }
    }

    /// A controller deleted a slice.
    pub fn slice_deleted(&mut self, key: &Key) {
        if let Some(state) = self.remove_slice(key) {
            self.deleted_slices.insert(key.clone(), state.meta.version);
        }
    }

    /// A slice does not exist.
    pub fn slice_missing(&mut self, key: &Key) {
        self.remove_slice(key);
    }

    /// Stores an Endpoints object as the answer to a write or a read has it, unless a newer version is known.
    pub fn endpoints_written(&mut self, endpoints: Endpoints, touched: &mut Vec<Touched>) {
        let (key, state) = (Key::of(&endpoints), EndpointsState::new(endpoints, true));
        let known = self.endpoints.get(&key).map(|stored| (stored.meta.version, stored.has_subsets()));
        let is_newer = known.is_none_or(|(known, complete)| state.meta.version > known || !complete);
        if is_newer {
            let state = if self.needs_subsets(&key, &state) { state } else { state.without_subsets() };
            self.endpoints.apply(key.clone(), state);
            touched.push(Touched { key, by: Cause::Endpoints });
        }
    }

    /// Whether the addresses of an Endpoints object may be mirrored: then they are kept.
    fn needs_subsets(&self, key: &Key, state: &EndpointsState) -> bool {
        !state.is_managed() || self.services.get(key).is_none_or(|service| !service.selects())
    }

    /// An Endpoints object does not exist.
    pub fn endpoints_missing(&mut self, key: &Key) {
        self.endpoints.delete(key);
    }

    pub(super) fn apply_slice(&mut self, event: Event<EndpointSlice>, touched: &mut Vec<Touched>) {
        match event {
            Event::Init => self.slices.begin_list(),
            Event::Apply(slice) => {
                let key = Key::of(&slice);
                let meta = slice.metadata.as_ref();
                let seen = meta.map(version).unwrap_or_default();
                if self.deleted_slices.get(&key).is_some_and(|&deleted| seen <= deleted) {
                    return;
                }
                self.deleted_slices.remove(&key);
                let stored = self.slices.get(&key);
                // Versions are those of the whole cluster.
                let is_older = stored.is_some_and(|stored| seen < stored.meta.version);
                if is_older {
                    self.slices.keep(&key);
                    return;
                }
                match SliceState::new(slice) {
                    Some(state) => {
                        let service = Key::new(key.namespace(), state.service());
                        let maintainer = state.maintainer;
                        match self.put_slice(key, state) {
                            Applied::Unchanged => return,
                            Applied::Inserted => {}
                            Applied::Replaced(old) => touch_slice(service.namespace(), &old, touched),
                        }
                        touched.push(Touched { key: service, by: Cause::Slice(maintainer) });
                    }
                    None => {
                        if let Some(old) = self.remove_slice(&key) {
                            touch_slice(key.namespace(), &old, touched);
                        }
                    }
                }
            }
            Event::InitDone => {
                self.deleted_slices.clear();
                for key in self.slices.finish_list() {
                    if let Some(old) = self.remove_slice(&key) {
                        touch_slice(key.namespace(), &old, touched);
                    }
                }
            }
            Event::Delete { namespace, name } => {
                let key = Key::new(&namespace, &name);
                self.deleted_slices.remove(&key);
                self.taken_names.remove(&key);
                if let Some(old) = self.remove_slice(&key) {
                    touch_slice(key.namespace(), &old, touched);
                }
            }
        }
    }

    fn put_slice(&mut self, key: Key, state: SliceState) -> Applied<SliceState> {
        let service = Key::new(key.namespace(), state.service());
        let applied = self.slices.apply(key.clone(), state);
        match &applied {
            Applied::Unchanged => return applied,
            Applied::Inserted => {}
            Applied::Replaced(old) => {
                self.slices_by_service.remove(&Key::new(key.namespace(), old.service()), &key);
            }
        }
        self.slices_by_service.insert(service, key);
        applied
    }

    fn remove_slice(&mut self, key: &Key) -> Option<SliceState> {
        let (key, old) = self.slices.delete(key)?;
        self.slices_by_service.remove(&Key::new(key.namespace(), old.service()), &key);
        Some(old)
    }

    pub(super) fn apply_endpoints(&mut self, event: Event<Endpoints>, touched: &mut Vec<Touched>) {
        let touch = |key: Key| Touched { key, by: Cause::Endpoints };
        match event {
            Event::Init => self.endpoints.begin_list(),
            Event::Apply(endpoints) => {
                let key = Key::of(&endpoints);
                let state = EndpointsState::new(endpoints, true);
                let state = if self.needs_subsets(&key, &state) { state } else { state.without_subsets() };
                let stored = self.endpoints.get(&key);
                let is_older = stored.is_some_and(|stored| state.meta.version < stored.meta.version);
                if is_older {
                    self.endpoints.keep(&key);
                } else if self.endpoints.apply(key.clone(), state) != Applied::Unchanged {
                    touched.push(touch(key));
                }
            }
            Event::InitDone => {
                for key in self.endpoints.finish_list() {
                    self.endpoints.delete(&key);
                    touched.push(touch(key));
                }
            }
            Event::Delete { namespace, name } => {
                let key = Key::new(&namespace, &name);
                if self.endpoints.delete(&key).is_some() {
                    touched.push(touch(key));
                }
            }
        }
    }
}

fn touch_slice(namespace: &str, slice: &SliceState, touched: &mut Vec<Touched>) {
    let key = Key::new(namespace, slice.service());
    touched.push(Touched { key, by: Cause::Slice(slice.maintainer) });
}
