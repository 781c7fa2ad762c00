//! The store of a reflector: a compact value for each object of a resource, and the keys that changed.
//!
//! In: the events of a list and watch, with each object already reduced to a compact value. Out: values that were
//! replaced or deleted, and the set of keys that the caller marked as changed since it was last taken. Each value has
//! the number of the list in which its object was last seen, so that the end of a relist finds the objects that the
//! list did not contain.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// The result of [`Store::apply`].
#[derive(Debug, PartialEq, Eq)]
pub enum Applied<V> {
    /// The stored value is the same.
    Unchanged,
    /// The key is new.
    Inserted,
    /// The stored value was different; this is the old one.
    Replaced(V),
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    generation: u32,
}

/// Compact values by key.
#[derive(Debug)]
pub struct Store<K, V> {
    entries: HashMap<K, Entry<V>>,
    generation: u32,
    listed: bool,
    dirty: HashSet<K>,
}

impl<K, V> Default for Store<K, V> {
    fn default() -> Self {
        Store { entries: HashMap::new(), generation: 0, listed: false, dirty: HashSet::new() }
    }
}

impl<K: Eq + Hash + Clone, V: PartialEq> Store<K, V> {
    /// Begins a list. [`Store::finish_list`] returns the objects that it does not contain.
    pub fn begin_list(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Stores the value of an object. It replaces the previous value if they differ.
    pub fn apply(&mut self, key: K, value: V) -> Applied<V> {
        let generation = self.generation;
        match self.entries.get_mut(&key) {
            Some(entry) => {
                entry.generation = generation;
                if entry.value == value {
                    return Applied::Unchanged;
                }
                Applied::Replaced(std::mem::replace(&mut entry.value, value))
            }
            None => {
                self.entries.insert(key, Entry { value, generation });
                Applied::Inserted
            }
        }
    }

    /// Marks an object as seen in the current list and keeps its value, for instance because the new version is
    /// malformed.
    pub fn keep<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.generation = self.generation;
        }
    }

    /// Deletes an object and returns its key and value, if it was stored.
    pub fn delete<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.entries.remove_entry(key).map(|(key, entry)| (key, entry.value))
    }

    /// Completes the list and returns the keys that it did not contain. They stay in the store until the caller deletes
    /// them.
    pub fn finish_list(&mut self) -> Vec<K> {
        self.listed = true;
        let unseen = self.entries.iter().filter(|(_, entry)| entry.generation != self.generation);
        unseen.map(|(key, _)| key.clone()).collect()
    }

    /// Whether any list has been completed.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Number of the list that was begun last.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The value of a key.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Keys and values, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the store has no values.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Marks a key as changed: its value, or state derived from it. The key need not have a value.
    pub fn mark_dirty(&mut self, key: K) {
        self.dirty.insert(key);
    }

    /// Marks every key that has a value.
    pub fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.entries.keys().cloned());
    }

    /// Whether any key is marked.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns the marked keys and clears the marks.
    pub fn take_dirty(&mut self) -> HashSet<K> {
        std::mem::take(&mut self.dirty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn finish_and_delete(store: &mut Store<&'static str, u32>) -> Vec<&'static str> {
        let mut keys = store.finish_list();
        for key in &keys {
            store.delete(key);
        }
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_relist_returns_the_objects_that_it_does_not_contain() {
        let mut store = Store::default();
        store.begin_list();
        for key in ["a", "b", "c", "d"] {
            assert_eq!(store.apply(key, 1), Applied::Inserted);
        }
        assert!(!store.is_listed());
        assert_eq!(finish_and_delete(&mut store), [""; 0]);
        assert!(store.is_listed());
        store.begin_list();
        assert_eq!(store.apply("a", 1), Applied::Unchanged);
        assert_eq!(store.apply("b", 2), Applied::Replaced(1));
        store.keep("c");
        assert_eq!(finish_and_delete(&mut store), ["d"]);
        assert_eq!((store.get("b"), store.get("c"), store.get("d")), (Some(&2), Some(&1), None));
    }

    #[test]
    fn objects_of_an_aborted_list_do_not_count_as_seen() {
        let mut store = Store::default();
        store.begin_list();
        store.apply("a", 1);
        store.begin_list();
        store.apply("b", 1);
        assert_eq!(finish_and_delete(&mut store), ["a"]);
    }

    #[test]
    fn marked_keys_are_returned_once() {
        let mut store = Store::default();
        store.apply("a", 1);
        store.mark_dirty("without-value");
        store.mark_all_dirty();
        assert!(store.has_dirty());
        assert_eq!(store.take_dirty(), HashSet::from(["a", "without-value"]));
        assert!(!store.has_dirty() && store.take_dirty().is_empty());
    }

    proptest! {
        /// After a relist the store has exactly the objects of the list.
        #[test]
        fn a_relist_equals_a_first_list(
            before in prop::collection::hash_map(0u8..20, any::<u8>(), 0..20),
            list in prop::collection::hash_map(0u8..20, any::<u8>(), 0..20),
        ) {
            let mut store = Store::default();
            store.begin_list();
            for (key, value) in &before {
                store.apply(*key, *value);
            }
            store.finish_list();
            store.begin_list();
            for (key, value) in &list {
                store.apply(*key, *value);
            }
            for key in store.finish_list() {
                prop_assert!(!list.contains_key(&key));
                store.delete(&key);
            }
            let kept: HashMap<u8, u8> = store.iter().map(|(k, v)| (*k, *v)).collect();
            prop_assert_eq!(kept, list);
        }
    }
}
