//! A reflector's memory: what a consumer keeps of each object of a resource, and which keys changed.
//!
//! In: what a list and watch tells, object by object, already reduced to a compact value. Out: what went, what was
//! replaced, and, if asked for, the set of keys that changed since it was last drained. Each value carries the number
//! of the list it was last seen in, so that the end of a relist finds the objects that were missing from it.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// What [`Store::apply`] did.
#[derive(Debug, PartialEq, Eq)]
pub enum Applied<V> {
    /// The value is the one that was there.
    Unchanged,
    /// The key is new.
    Inserted,
    /// Another value was there.
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
    /// A list begins: objects that it does not mention are gone at its end.
    pub fn begin_list(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// An object is there. Its value replaces the one before, if they differ.
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

    /// An object is there, but the value before stays, for instance because the new one is malformed.
    pub fn keep<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.generation = self.generation;
        }
    }

    /// An object is gone. Its key and value come back, if there was one.
    pub fn delete<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        self.entries.remove_entry(key).map(|(key, entry)| (key, entry.value))
    }

    /// The list is complete. The keys that it did not mention come back; they are still in the store, to be deleted one
    /// by one.
    pub fn finish_list(&mut self) -> Vec<K> {
        self.listed = true;
        let gone = self.entries.iter().filter(|(_, entry)| entry.generation != self.generation);
        gone.map(|(key, _)| key.clone()).collect()
    }

    /// Whether a list was completed once.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Number of the list that runs or was last complete.
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

    /// Keys and values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Marks a key as changed, whether it has a value or not: the value itself, or something that depends on it.
    pub fn mark_dirty(&mut self, key: K) {
        self.dirty.insert(key);
    }

    /// Marks every key that has a value.
    pub fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.entries.keys().cloned());
    }

    /// Whether a key is marked.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The marked keys; none is marked afterwards.
    pub fn take_dirty(&mut self) -> HashSet<K> {
        std::mem::take(&mut self.dirty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gone(store: &mut Store<&'static str, u32>) -> Vec<&'static str> {
        let mut keys = store.finish_list();
        for key in &keys {
            store.delete(key);
        }
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_relist_finds_the_objects_that_it_did_not_mention() {
        let mut store = Store::default();
        store.begin_list();
        for key in ["a", "b", "c", "d"] {
            assert_eq!(store.apply(key, 1), Applied::Inserted);
        }
        assert!(!store.is_listed());
        assert_eq!(gone(&mut store), [""; 0]);
        assert!(store.is_listed());
        store.begin_list();
        assert_eq!(store.apply("a", 1), Applied::Unchanged);
        assert_eq!(store.apply("b", 2), Applied::Replaced(1));
        store.keep("c");
        assert_eq!(gone(&mut store), ["d"]);
        assert_eq!((store.get("b"), store.get("c"), store.get("d")), (Some(&2), Some(&1), None));
    }

    #[test]
    fn a_list_that_starts_over_forgets_what_the_broken_one_mentioned() {
        let mut store = Store::default();
        store.begin_list();
        store.apply("a", 1);
        store.begin_list();
        store.apply("b", 1);
        assert_eq!(gone(&mut store), ["a"]);
    }

    #[test]
    fn marked_keys_are_drained_once() {
        let mut store = Store::default();
        store.apply("a", 1);
        store.mark_dirty("elsewhere");
        store.mark_all_dirty();
        assert!(store.has_dirty());
        assert_eq!(store.take_dirty(), HashSet::from(["a", "elsewhere"]));
        assert!(!store.has_dirty() && store.take_dirty().is_empty());
    }

    proptest! {
        /// After a relist the store has exactly what the list had.
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
