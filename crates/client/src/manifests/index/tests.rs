//! Files are added, changed, renamed and removed; and a comparison with a new index.

use super::*;
use portway_api::{Resource, Service};
use proptest::prelude::*;

fn key(name: &str) -> Arc<Key> {
    Arc::new(Key { resource: Service::TYPE, namespace: "default".into(), name: name.into() })
}

/// `"a1 b2"` is object a with fingerprint 1 and object b with fingerprint 2.
fn contents(text: &str) -> Option<Contents> {
    Some(text.split_whitespace().map(|word| (key(&word[..1]), word[1..].parse().unwrap())).collect())
}

fn update(index: &mut Index, batch: &[(&str, Option<&str>)]) -> Vec<String> {
    let batch = batch.iter().map(|(file, text)| (file.into(), text.and_then(contents))).collect();
    let mut changes: Vec<_> = index.update(batch).iter().map(print).collect();
    changes.sort();
    changes
}

fn print(change: &Change) -> String {
    match change {
        Change::Apply { key, file } => format!("+{} in {}", key.name, file.display()),
        Change::Delete { key } => format!("-{}", key.name),
        Change::Duplicate { key, file, winner } => {
            format!("{} in {} duplicates {}", key.name, file.display(), winner.display())
        }
    }
}

#[test]
fn only_changes_are_reported() {
    let mut index = Index::default();
    assert_eq!(update(&mut index, &[("f", Some("a1 b1"))]), ["+a in f", "+b in f"]);
    assert_eq!(update(&mut index, &[("f", Some("a1 b1"))]), [""; 0]);
    assert_eq!(update(&mut index, &[("f", Some("a2 c1"))]), ["+a in f", "+c in f", "-b"]);
    assert_eq!(update(&mut index, &[("f", None)]), ["-a", "-c"]);
    assert_eq!(update(&mut index, &[("f", None)]), [""; 0]);
    assert!(index.files_by_key.is_empty() && index.files.is_empty());
}

#[test]
fn the_first_file_takes_precedence_and_the_next_replaces_it() {
    let mut index = Index::default();
    update(&mut index, &[("m", Some("a1"))]);
    assert_eq!(update(&mut index, &[("z", Some("a2"))]), ["a in z duplicates m"]);
    assert_eq!(update(&mut index, &[("z", Some("a3"))]), [""; 0], "reported once");
    assert_eq!(
        update(&mut index, &[("b", Some("a4"))]),
        ["+a in b", "a in m duplicates b", "a in z duplicates b"]
    );
    assert_eq!(update(&mut index, &[("b", None)]), ["+a in m", "a in z duplicates m"]);
    assert_eq!(update(&mut index, &[("m", Some(""))]), ["+a in z"]);
    assert_eq!(update(&mut index, &[("z", None)]), ["-a"]);
}

#[test]
fn an_object_that_moves_to_another_file_in_one_batch_is_not_deleted() {
    let mut index = Index::default();
    update(&mut index, &[("f", Some("a1 b1"))]);
    assert_eq!(update(&mut index, &[("f", None), ("g", Some("a1 b2"))]), ["+b in g"]);
}

#[test]
fn replacement_by_an_equal_object_is_not_a_change() {
    let mut index = Index::default();
    update(&mut index, &[("f", Some("a1")), ("g", Some("a1"))]);
    assert_eq!(update(&mut index, &[("f", None)]), [""; 0]);
}

#[test]
fn later_updates_compare_with_the_corrected_fingerprint() {
    let mut index = Index::default();
    update(&mut index, &[("f", Some("a1"))]);
    index.correct(OsStr::new("f"), &key("a"), Some(2));
    assert_eq!(update(&mut index, &[("f", Some("a2"))]), [""; 0]);
    assert_eq!(update(&mut index, &[("f", Some("a1"))]), ["+a in f"]);
}

proptest! {
    /// Applying the changes gives the same objects as reading all files.
    #[test]
    fn incremental_updates_equal_a_full_read(
        batches in proptest::collection::vec(
            proptest::collection::vec(("[fgh]", proptest::option::of("([ab][12] ){0,2}")), 1..3), 0..12),
    ) {
        let mut index = Index::default();
        let mut files: BTreeMap<String, Contents> = BTreeMap::new();
        let mut incremental: BTreeMap<Arc<Key>, u64> = BTreeMap::new();
        for batch in batches {
            // Each file is in a batch at most once.
            let batch: BTreeMap<String, Option<Contents>> =
                batch.into_iter().map(|(file, text)| (file, text.as_deref().and_then(contents))).collect();
            for (file, contents) in &batch {
                match contents {
                    Some(contents) => files.insert(file.clone(), contents.clone()),
                    None => files.remove(file),
                };
            }
            for change in index.update(batch.into_iter().map(|(file, c)| (file.into(), c)).collect()) {
                match change {
                    Change::Apply { key, file } => {
                        incremental.insert(key.clone(), files[file.to_str().unwrap()][&key]);
                    }
                    Change::Delete { key } => prop_assert!(incremental.remove(&key).is_some()),
                    Change::Duplicate { file, winner, .. } => prop_assert!(winner < file),
                }
            }
            let mut full = BTreeMap::new();
            for contents in files.values() {
                for (key, fingerprint) in contents {
                    full.entry(key.clone()).or_insert(*fingerprint);
                }
            }
            prop_assert_eq!(&incremental, &full);
        }
    }
}
