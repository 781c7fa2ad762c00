//! Files come, change, move and go; and a check against doing it all from scratch.

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
        Change::Apply { key, file } => format!("+{} of {}", key.name, file.display()),
        Change::Delete { key } => format!("-{}", key.name),
        Change::Duplicate { key, file, winner } => {
            format!("{} of {} loses to {}", key.name, file.display(), winner.display())
        }
    }
}

#[test]
fn only_changes_are_told() {
    let mut index = Index::default();
    assert_eq!(update(&mut index, &[("f", Some("a1 b1"))]), ["+a of f", "+b of f"]);
    assert_eq!(update(&mut index, &[("f", Some("a1 b1"))]), [""; 0]);
    assert_eq!(update(&mut index, &[("f", Some("a2 c1"))]), ["+a of f", "+c of f", "-b"]);
    assert_eq!(update(&mut index, &[("f", None)]), ["-a", "-c"]);
    assert_eq!(update(&mut index, &[("f", None)]), [""; 0]);
    assert!(index.places.is_empty() && index.files.is_empty());
}

#[test]
fn the_first_file_wins_and_the_next_takes_over() {
    let mut index = Index::default();
    update(&mut index, &[("m", Some("a1"))]);
    assert_eq!(update(&mut index, &[("z", Some("a2"))]), ["a of z loses to m"]);
    assert_eq!(update(&mut index, &[("z", Some("a3"))]), [""; 0], "told once");
    assert_eq!(
        update(&mut index, &[("b", Some("a4"))]),
        ["+a of b", "a of m loses to b", "a of z loses to b"]
    );
    assert_eq!(update(&mut index, &[("b", None)]), ["+a of m", "a of z loses to m"]);
    assert_eq!(update(&mut index, &[("m", Some(""))]), ["+a of z"]);
    assert_eq!(update(&mut index, &[("z", None)]), ["-a"]);
}

#[test]
fn an_object_that_moves_in_one_batch_does_not_vanish() {
    let mut index = Index::default();
    update(&mut index, &[("f", Some("a1 b1"))]);
    assert_eq!(update(&mut index, &[("f", None), ("g", Some("a1 b2"))]), ["+b of g"]);
}

#[test]
fn a_takeover_by_an_equal_object_is_no_change() {
    let mut index = Index::default();
    update(&mut index, &[("f", Some("a1")), ("g", Some("a1"))]);
    assert_eq!(update(&mut index, &[("f", None)]), [""; 0]);
}

#[test]
fn a_corrected_fingerprint_counts() {
    let mut index = Index::default();
    update(&mut index, &[("f", Some("a1"))]);
    index.correct(OsStr::new("f"), &key("a"), Some(2));
    assert_eq!(update(&mut index, &[("f", Some("a2"))]), [""; 0]);
    assert_eq!(update(&mut index, &[("f", Some("a1"))]), ["+a of f"]);
}

proptest! {
    /// Following the changes gives the same objects as reading everything.
    #[test]
    fn following_equals_reading_anew(
        batches in proptest::collection::vec(
            proptest::collection::vec(("[fgh]", proptest::option::of("([ab][12] ){0,2}")), 1..3), 0..12),
    ) {
        let mut index = Index::default();
        let mut files: BTreeMap<String, Contents> = BTreeMap::new();
        let mut followed: BTreeMap<Arc<Key>, u64> = BTreeMap::new();
        for batch in batches {
            // A file is once in a batch.
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
                        followed.insert(key.clone(), files[file.to_str().unwrap()][&key]);
                    }
                    Change::Delete { key } => prop_assert!(followed.remove(&key).is_some()),
                    Change::Duplicate { file, winner, .. } => prop_assert!(winner < file),
                }
            }
            let mut anew = BTreeMap::new();
            for contents in files.values() {
                for (key, fingerprint) in contents {
                    anew.entry(key.clone()).or_insert(*fingerprint);
                }
            }
            prop_assert_eq!(&followed, &anew);
        }
    }
}
