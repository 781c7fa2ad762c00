//! Tests of `queue`.

use super::*;
use proptest::prelude::*;

fn key(n: usize) -> Key {
    Key::new("default", &format!("service-{n}"))
}

#[test]
fn keys_are_taken_once_and_in_order() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for n in [1, 2, 1, 3, 2] {
        queue.add(&key(n), now, now);
    }
    assert_eq!(queue.depth(), 3);
    let taken: Vec<Key> = std::iter::from_fn(|| queue.take(now)).collect();
    assert_eq!(taken, [key(1), key(2), key(3)]);
    assert_eq!(queue.take_figures().adds, 3);
}

#[test]
fn a_key_that_changes_while_it_is_worked_on_is_taken_again_afterwards() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key(1), now, now);
    assert_eq!(queue.take(now), Some(key(1)));
    queue.add(&key(1), now, now);
    assert_eq!(queue.take(now), None, "two workers must not have one key");
    queue.done(&key(1), false, now);
    assert_eq!(queue.take(now), Some(key(1)));
    queue.done(&key(1), false, now);
    assert_eq!(queue.take(now), None);
    assert!(queue.entries.is_empty(), "a key that is done takes no memory");
}

#[test]
fn failed_work_is_repeated_after_growing_waits() {
    let (mut queue, mut now) = (Queue::default(), Instant::now());
    queue.add(&key(1), now, now);
    for millis in [5, 10, 20, 40, 80] {
        assert_eq!(queue.take(now), Some(key(1)));
        assert_eq!(queue.done(&key(1), true, now), Some(Duration::from_millis(millis)));
        assert_eq!(queue.take(now), None);
        now = queue.next_due().expect("a wait");
    }
    for _ in 0..30 {
        queue.take(now);
        queue.done(&key(1), true, now);
        now = queue.next_due().expect("a wait");
    }
    queue.take(now);
    assert_eq!(queue.done(&key(1), true, now), Some(LONGEST_WAIT));
    now += LONGEST_WAIT;
    assert_eq!(queue.take(now), Some(key(1)));
    assert_eq!((queue.failures(&key(1)), queue.done(&key(1), false, now)), (36, None));
    assert_eq!(queue.failures(&key(1)), 0);
}

#[test]
fn a_change_during_work_that_fails_is_not_kept_waiting() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key(1), now, now);
    queue.take(now);
    queue.add(&key(1), now, now);
    assert!(queue.done(&key(1), true, now).is_some());
    assert_eq!(queue.take(now), Some(key(1)));
}

#[test]
fn a_key_that_waits_is_due_earlier_if_it_is_added_again() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key(1), now + Duration::from_secs(5), now);
    queue.add(&key(1), now + Duration::from_secs(9), now);
    assert_eq!(queue.next_due(), Some(now + Duration::from_secs(5)));
    queue.add(&key(1), now, now);
    assert_eq!((queue.take(now), queue.next_due()), (Some(key(1)), None));
}

proptest! {
    /// Every key that was added is taken, none is taken twice at a time, and those that wait longest come first.
    #[test]
    fn no_key_starves(steps in prop::collection::vec((0usize..8, 0u8..4, any::<bool>()), 1..200)) {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let mut working: Vec<Key> = Vec::new();
        let mut wanted: BTreeSet<Key> = BTreeSet::new();
        for (n, step, failed) in steps {
            now += Duration::from_millis(1);
            match step {
                0 | 1 => {
                    queue.add(&key(n), now, now);
                    wanted.insert(key(n));
                }
                2 => if let Some(key) = queue.take(now) {
                    prop_assert!(!working.contains(&key));
                    wanted.remove(&key);
                    working.push(key);
                },
                _ => if let Some(key) = working.pop() {
                    queue.done(&key, failed, now);
                    if failed {
                        wanted.insert(key);
                    }
                },
            }
        }
        for key in working {
            queue.done(&key, false, now);
        }
        now += LONGEST_WAIT;
        while let Some(key) = queue.take(now) {
            wanted.remove(&key);
            queue.done(&key, false, now);
        }
        prop_assert!(wanted.is_empty(), "{wanted:?}");
        prop_assert!(queue.entries.is_empty());
    }
}
