//! What is on disk after failures, kills and concurrent writers.

use super::file::File;
use super::*;
use crate::storage::{Condition, Key, Stored, UnknownRevision};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// The variable with the file of a child process that writes until it is killed.
const CHILD: &str = "PORTWAY_STORAGE_CHILD";

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn key(name: &str) -> Key {
    Key::new(&format!("/registry/{name}"))
}

fn everything(storage: &Embedded) -> BTreeMap<Key, Stored> {
    storage.cache().list("/", None, usize::MAX).0.into_iter().collect()
}

#[tokio::test]
async fn what_is_written_is_there_after_it_was_opened_again() {
    let directory = directory();
    let path = directory.path().join("state");
    let storage = Embedded::open(&path).expect("a new file");
    let first = storage.commit(Transaction::create(key("a"), "one")).await.expect("created");
    let second = storage.commit(Transaction::create(key("b"), "two")).await.expect("created");
    storage.commit(Transaction::delete(key("a"), first)).await.expect("deleted");
    let third = storage.commit(Transaction::replace(key("b"), second, "three")).await.expect("replaced");
    let before = everything(&storage);
    drop(storage);
    let storage = Embedded::open(&path).expect("the same file");
    assert_eq!(everything(&storage), before);
    assert_eq!(before[&key("b")], Stored { value: Bytes::from_static(b"three"), revision: third });
    assert_eq!((storage.cache().revision(), third), (4, 4));
    assert_eq!(storage.cache().changes(3, "/", 9), Err(UnknownRevision::Expired { oldest: 4 }));
    assert_eq!(storage.commit(Transaction::create(key("c"), "four")).await, Ok(5));
}

#[tokio::test]
async fn a_transaction_whose_conditions_do_not_hold_changes_nothing() {
    let directory = directory();
    let storage = Embedded::open(&directory.path().join("state")).expect("a new file");
    let at = storage.commit(Transaction::create(key("a"), "one")).await.expect("created");
    let both = Transaction::create(key("b"), "two").and(key("a"), Condition::Absent, Some("x".into()));
    let found = Some(Stored { value: Bytes::from_static(b"one"), revision: at });
    assert_eq!(storage.commit(both).await, Err(CommitError::Failed { key: key("a"), found }));
    assert_eq!(storage.cache().get("/registry/b"), None);
    assert_eq!(storage.cache().revision(), at, "it has no revision");
    let missing = Transaction::delete(key("c"), at);
    assert_eq!(storage.commit(missing).await, Err(CommitError::Failed { key: key("c"), found: None }));
}

#[tokio::test]
async fn of_writers_of_one_key_one_wins_in_each_round() {
    let directory = directory();
    let storage = Arc::new(Embedded::open(&directory.path().join("state")).expect("a new file"));
    let mut at = storage.commit(Transaction::create(key("a"), "0")).await.expect("created");
    for _ in 0..5 {
        let writers: Vec<_> = (0..50)
            .map(|n| {
                let (storage, value) = (storage.clone(), format!("{n}"));
                tokio::spawn(async move { storage.commit(Transaction::replace(key("a"), at, value)).await })
            })
            .collect();
        let mut won = Vec::new();
        for writer in writers {
            won.extend(writer.await.expect("no panic").ok());
        }
        assert_eq!(won, [at + 1]);
        at += 1;
    }
}

#[test]
fn a_second_process_is_refused() {
    let directory = directory();
    let path = directory.path().join("state");
    let _storage = Embedded::open(&path).expect("a new file");
    let error = Embedded::open(&path).expect_err("it is open");
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
}

/// A file with a value, as it is after a write that failed, and was or was not on disk nevertheless.
fn file_in_doubt(path: &Path, is_on_disk: bool) -> File {
    let old = Stored { value: Bytes::from_static(b"old"), revision: 1 };
    let (mut file, ..) = File::open(path).expect("a new file");
    file.write(1, &[(key("a"), Some(old))].into(), |_| None).expect("written");
    if is_on_disk {
        file.write(2, &[(key("a"), None)].into(), |_| None).expect("written");
    }
    file.fail(1, [key("a")], 2);
    file
}

#[test]
fn a_write_that_failed_is_undone_by_the_next_one() {
    for is_on_disk in [false, true] {
        let directory = directory();
        let path = directory.path().join("state");
        let mut file = file_in_doubt(&path, is_on_disk);
        let old = Stored { value: Bytes::from_static(b"old"), revision: 1 };
        let new = Stored { value: Bytes::from_static(b"new"), revision: 3 };
        let current = |wanted: &Key| (*wanted == key("a")).then(|| old.clone());
        file.write(3, &[(key("b"), Some(new.clone()))].into(), current).expect("written");
        drop(file);
        let storage = Embedded::open(&path).expect("the file");
        assert_eq!(everything(&storage), [(key("a"), old), (key("b"), new)].into());
        assert_eq!(storage.cache().revision(), 3);
    }
}

#[test]
fn a_file_that_was_replaced_after_a_failure_is_not_written() {
    let directory = directory();
    let path = directory.path().join("state");
    let mut file = file_in_doubt(&path, false);
    std::fs::rename(&path, directory.path().join("away")).expect("move the file away");
    let values = || [(key("b"), None)].into();
    file.write(3, &values(), |_| None).expect_err("there is no file");
    assert!(!path.exists(), "no new one was created");
    // One of another state is there instead.
    let (mut other, ..) = File::open(&path).expect("a new file");
    other.write(9, &values(), |_| None).expect("written");
    drop(other);
    let error = file.write(4, &values(), |_| None).expect_err("another file");
    assert!(error.contains("another process"), "{error}");
}

#[test]
fn an_empty_file_is_no_new_state() {
    let directory = directory();
    let path = directory.path().join("state");
    std::fs::write(&path, b"").expect("an empty file");
    let error = Embedded::open(&path).expect_err("it is empty");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

#[test]
fn a_damaged_file_is_refused_or_read_whole() {
    let directory = directory();
    let path = directory.path().join("state");
    let storage = Embedded::open(&path).expect("a new file");
    runtime().block_on(async {
        for n in 0..200 {
            let create = Transaction::create(key(&n.to_string()), vec![b'x'; 300]);
            storage.commit(create).await.expect("created");
        }
    });
    let before = everything(&storage);
    drop(storage);
    let sound = std::fs::read(&path).expect("the file");
    let mut refused = 0;
    for position in (0..sound.len()).step_by(sound.len() / 150) {
        let mut damaged = sound.clone();
        damaged[position] ^= 0x55;
        std::fs::write(&path, &damaged).expect("write the file");
        // The library may also panic over pages that make no sense; such a file is not used either.
        match std::panic::catch_unwind(|| Embedded::open(&path)) {
            Ok(Ok(storage)) => assert_eq!(everything(&storage), before, "byte {position}"),
            Ok(Err(error)) => {
                refused += 1;
                assert!(error.to_string().contains("state"), "{error}");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 20, "{refused}");
}

/// Not a test by itself: the process that the next one kills. It prints every revision that was acknowledged.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let storage = Embedded::open(path.as_ref()).expect("the file");
    let mut out = std::io::stdout();
    runtime().block_on(async {
        for n in storage.cache().revision() + 1.. {
            // Two keys change together, so that half of a transaction would be seen.
            let at = storage.cache().get("/registry/left");
            let condition = at.map_or(Condition::Absent, |stored| Condition::At(stored.revision));
            let value = Some(Bytes::from(n.to_string()));
            let both = Transaction::default()
                .and(key("left"), condition.clone(), value.clone())
                .and(key("right"), condition, value)
                .and(key(&format!("each/{n}")), Condition::Absent, Some(Bytes::from_static(b"x")));
            let revision = storage.commit(both).await.expect("written");
            writeln!(out, "acknowledged {revision}").and_then(|()| out.flush()).expect("print");
        }
    });
}

#[test]
fn a_process_that_is_killed_at_any_time_loses_nothing_that_was_acknowledged() {
    let directory = directory();
    let path = directory.path().join("state");
    let test = "storage::embedded::tests::child_that_writes_until_it_is_killed";
    for round in 0..10 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start a child");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut acknowledged = 0;
        let mut count = 0;
        for line in lines.map_while(Result::ok) {
            let Some(revision) = line.strip_prefix("acknowledged ") else { continue };
            acknowledged = revision.parse().expect("a revision");
            count += 1;
            if count == 1 + round * 7 {
                child.kill().expect("kill the child");
            }
        }
        child.wait().expect("its end");
        let storage = Embedded::open(&path).expect("the file");
        let revision = storage.cache().revision();
        assert!(revision >= acknowledged, "{revision} is before {acknowledged}");
        let value = |name: &str| storage.cache().get(key(name).as_str()).map(|stored| stored.value);
        assert_eq!(value("left"), Some(Bytes::from(revision.to_string())));
        assert_eq!(value("left"), value("right"));
        assert_eq!(storage.cache().count("/registry/each/", "/registry/each/") as u64, revision);
    }
}

/// A transaction of the property: keys with a condition and a write.
type Step = Vec<(u8, bool, Option<u8>)>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// The storage behaves as a map with revisions does, also when it is opened anew.
    #[test]
    fn it_behaves_as_a_map_with_revisions(
        steps in prop::collection::vec(
            prop::collection::vec((0u8..4, any::<bool>(), prop::option::of(any::<u8>())), 1..3), 1..25),
        reopen in 0usize..25,
    ) {
        let directory = directory();
        let path = directory.path().join("state");
        let mut storage = Embedded::open(&path).expect("a new file");
        let mut model: BTreeMap<Key, Stored> = BTreeMap::new();
        let mut revision = 0;
        for (n, step) in steps.iter().enumerate() {
            if n == reopen {
                drop(storage);
                storage = Embedded::open(&path).expect("the file");
            }
            let (transaction, holds) = transaction(step, &model);
            let result = runtime().block_on(storage.commit(transaction.clone()));
            if holds {
                revision += 1;
                prop_assert_eq!(result, Ok(revision));
                for (key, value) in transaction.writes {
                    match value {
                        Some(value) => _ = model.insert(key, Stored { value, revision }),
                        None => _ = model.remove(&key),
                    }
                }
            } else {
                let refused = matches!(result, Err(CommitError::Failed { .. }));
                prop_assert!(refused);
            }
            prop_assert_eq!(&everything(&storage), &model);
        }
    }
}

/// A transaction, and whether its conditions hold.
fn transaction(step: &Step, model: &BTreeMap<Key, Stored>) -> (Transaction, bool) {
    let mut transaction = Transaction::default();
    let mut holds = true;
    for (name, right, value) in step {
        let key = key(&name.to_string());
        let found = model.get(&key);
        let condition = match (found, right) {
            (Some(found), true) => Condition::At(found.revision),
            (Some(found), false) => Condition::At(found.revision + 1),
            (None, true) => Condition::Absent,
            (None, false) => Condition::At(1),
        };
        holds &= condition.holds(found);
        let value = value.map(|value| Bytes::from(vec![value]));
        transaction = transaction.and(key, condition, value);
    }
    (transaction, holds)
}
