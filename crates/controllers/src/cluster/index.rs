//! The keys of objects by a property that many of them may share.

use crate::key::Key;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Keys by property.
#[derive(Debug)]
pub(crate) struct Index<P>(HashMap<P, Vec<Key>>);

impl<P> Default for Index<P> {
    fn default() -> Self {
        Index(HashMap::new())
    }
}

impl<P: Eq + Hash> Index<P> {
    /// The keys with a property.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, property: &Q) -> &[Key]
    where
        P: Borrow<Q>,
    {
        self.0.get(property).map_or(&[], Vec::as_slice)
    }

    /// Adds a key that does not have the property yet.
    pub(crate) fn insert(&mut self, property: P, key: Key) {
        self.0.entry(property).or_default().push(key);
    }

    /// Removes a key.
    pub(crate) fn remove<Q: Eq + Hash + ?Sized>(&mut self, property: &Q, key: &Key)
    where
        P: Borrow<Q>,
    {
        if let Some(keys) = self.0.get_mut(property) {
            if let Some(position) = keys.iter().position(|k| k == key) {
                keys.swap_remove(position);
            }
            if keys.is_empty() {
                self.0.remove(property);
            }
        }
    }
}
