//! What readers and watches see.

use super::*;

fn cache(window: usize) -> Cache {
    Cache::with_window(BTreeMap::new(), 0, window)
}

/// Writes a value; an empty one deletes.
fn write(cache: &Cache, revision: Revision, key: &str, value: &'static str) {
    let value = (!value.is_empty()).then(|| Bytes::from_static(value.as_bytes()));
    cache.apply([(revision, vec![(Key::new(key), value)])]);
}

/// The keys of changes.
fn keys(changes: &[Arc<Change>]) -> Vec<&str> {
    changes.iter().map(|change| change.key.as_str()).collect()
}

#[test]
fn a_list_has_the_keys_of_its_prefix_in_pages() {
    let cache = cache(10);
    for (revision, key) in ["/a/1", "/a/2", "/a/3", "/b/1"].into_iter().enumerate() {
        write(&cache, revision as u64 + 1, key, "x");
    }
    let keys = |from, limit| {
        let (found, revision) = cache.list("/a/", from, limit);
        assert_eq!(revision, 4);
        found.into_iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(keys(None, 9), ["/a/1", "/a/2", "/a/3"]);
    assert_eq!(keys(None, 2), ["/a/1", "/a/2"]);
    assert_eq!(keys(Some("/a/3"), 2), ["/a/3"]);
    assert_eq!(cache.count("/a/", "/a/2"), 2);
}

#[test]
fn a_change_has_the_value_before_it() {
    let cache = cache(10);
    write(&cache, 1, "/a/1", "x");
    write(&cache, 2, "/a/1", "y");
    write(&cache, 3, "/a/1", "");
    let (changes, position) = cache.changes(0, "/a/", 10).expect("known");
    assert_eq!(position, 3);
    let text = |value: &Bytes| String::from_utf8_lossy(value).into_owned();
    let values: Vec<String> = changes
        .iter()
        .map(|change| {
            let old = change.old.as_ref().map(|old| text(&old.value)).unwrap_or_default();
            format!("{old}>{}", change.new.as_ref().map(text).unwrap_or_default())
        })
        .collect();
    assert_eq!(values, [">x", "x>y", "y>"]);
    assert_eq!(cache.get("/a/1"), None);
}

#[test]
fn changes_are_read_in_parts_that_end_with_a_transaction() {
    let cache = cache(10);
    let value = || Some(Bytes::from_static(b"x"));
    let both = vec![(Key::new("/a/1"), value()), (Key::new("/a/2"), value())];
    cache.apply([(1, both), (2, vec![(Key::new("/b/1"), value())])]);
    let (changes, position) = cache.changes(0, "/a/", 1).expect("known");
    assert_eq!((keys(&changes), position), (vec!["/a/1", "/a/2"], 1));
    let (changes, position) = cache.changes(position, "/a/", 1).expect("known");
    assert_eq!((keys(&changes), position), (vec![], 2), "changes of other prefixes are passed over");
}

#[test]
fn a_reader_that_is_too_slow_is_told() {
    let cache = cache(2);
    for revision in 1..=4 {
        write(&cache, revision, "/a/1", "x");
    }
    assert_eq!(cache.changes(1, "/a/", 10), Err(UnknownRevision::Expired { oldest: 2 }));
    assert_eq!(cache.changes(2, "/a/", 10).map(|(changes, _)| changes.len()), Ok(2));
    cache.compact();
    assert_eq!(cache.changes(3, "/a/", 10), Err(UnknownRevision::Expired { oldest: 4 }));
    assert_eq!(cache.changes(9, "/a/", 10), Err(UnknownRevision::Future { latest: 4 }));
    assert_eq!(cache.changes(4, "/a/", 10).map(|(changes, position)| (changes.len(), position)), Ok((0, 4)));
}

#[tokio::test]
async fn a_new_revision_wakes_those_that_wait() {
    let cache = cache(10);
    let mut revisions = cache.revisions();
    write(&cache, 1, "/a/1", "x");
    revisions.changed().await.expect("the cache is there");
    assert_eq!(*revisions.borrow(), 1);
}
