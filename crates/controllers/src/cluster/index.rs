//! The keys of objects by a property that one or many of them have.

use crate::key::Key;
use std::borrow::Borrow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// The keys with one property. Many properties are of a single object.
#[derive(Debug)]
enum Keys {
    One(Key),
    Many(HashSet<Key>),
}

/// Keys by property.
#[derive(Debug)]
pub(crate) struct Index<P>(HashMap<P, Keys>);

impl<P> Default for Index<P> {
    fn default() -> Self {
        Index(HashMap::new())
    }
}

impl<P: Eq + Hash> Index<P> {
    /// The keys with a property.
    pub(crate) fn get<Q: Eq + Hash + ?Sized>(&self, property: &Q) -> impl Iterator<Item = &Key>
    where
        P: Borrow<Q>,
    {
        let (one, many) = match self.0.get(property) {
            None => (None, None),
            Some(Keys::One(key)) => (Some(key), None),
            Some(Keys::Many(keys)) => (None, Some(keys)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The number of keys with a property.
    pub(crate) fn count<Q: Eq + Hash + ?Sized>(&self, property: &Q) -> usize
    where
        P: Borrow<Q>,
    {
        match self.0.get(property) {
            None => 0,
            Some(Keys::One(_)) => 1,
            Some(Keys::Many(keys)) => keys.len(),
        }
    }

    /// Adds a key.
    pub(crate) fn insert(&mut self, property: P, key: Key) {
        match self.0.entry(property) {
            Entry::Vacant(entry) => _ = entry.insert(Keys::One(key)),
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Keys::Many(keys) => _ = keys.insert(key),
                Keys::One(first) if *first == key => {}
                Keys::One(first) => {
                    let keys = HashSet::from([first.clone(), key]);
                    entry.insert(Keys::Many(keys));
                }
            },
        }
    }

    /// Removes a key.
    pub(crate) fn remove<Q: Eq + Hash + ?Sized>(&mut self, property: &Q, key: &Key)
    where
        P: Borrow<Q>,
    {
        let is_empty = match self.0.get_mut(property) {
            None => false,
            Some(Keys::One(only)) => only == key,
            Some(Keys::Many(keys)) => {
                keys.remove(key);
                keys.is_empty()
            }
        };
        if is_empty {
            self.0.remove(property);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_added_and_removed() {
        let (mut index, key) = (Index::default(), |n: u8| Key::new("a", &n.to_string()));
        for n in [1, 1, 2, 3] {
            index.insert("x", key(n));
        }
        index.insert("y", key(1));
        let found = |index: &Index<&'static str>, property: &str| {
            let mut keys: Vec<Key> = index.get(property).cloned().collect();
            keys.sort();
            assert_eq!(keys.len(), index.count(property));
            keys
        };
        assert_eq!(found(&index, "x"), [key(1), key(2), key(3)]);
        index.remove("x", &key(2));
        index.remove("y", &key(2));
        assert_eq!((found(&index, "x"), found(&index, "y")), (vec![key(1), key(3)], vec![key(1)]));
        for n in [1, 3] {
            index.remove("x", &key(n));
            index.remove("y", &key(n));
        }
        assert!(index.0.is_empty(), "properties of no object take no memory");
    }
}
