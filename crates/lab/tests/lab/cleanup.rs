//! Nothing is left: neither after a lab's end, nor, once the next one enters, after its death.

use crate::children::{self, runs, sleeper};
use portway_lab::{Layout, Namespace, eventually, reap};
use portway_testkit::harness::Test;
use std::fs;
use std::path::Path;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::function("cleanup::a_dropped_lab_is_removed", a_dropped_lab_is_removed),
        Test::function("cleanup::a_killed_lab_is_removed_by_the_next", a_killed_lab_is_removed_by_the_next),
        Test::function("cleanup::a_running_lab_is_not_removed", a_running_lab_is_not_removed),
        Test::function("cleanup::names_are_not_taken_twice", names_are_not_taken_twice),
    ]
}

/// What a process left in the file system: names and mounts.
fn traces(owner: u32) -> Vec<String> {
    let prefix = format!("portway.{owner}.");
    let names = fs::read_dir("/run/netns").map(|entries| {
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().map(str::to_owned);
    names.unwrap_or_default().into_iter().chain(mounts).filter(|t| t.contains(&prefix)).collect()
}

fn a_dropped_lab_is_removed() {
    let lab = Layout { nodes: 1, pods_per_node: 1, clients: 1 }.build().unwrap();
    let paths: Vec<_> = lab.hosts().map(|p| p.namespace().path().to_owned()).collect();
    // A process without a handle: it is killed with the namespace it is in.
    let pid = lab.pod("pod1a").namespace().run(|| sleeper().spawn().unwrap().id());
    let held = lab.pod("pod1a").spawn(sleeper()).unwrap();
    assert!(paths.iter().all(|p| p.exists()) && runs(pid) && runs(held.id()));
    drop(lab);
    assert!(!paths.iter().any(|p| p.exists()) && !runs(pid) && !runs(held.id()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!paths.iter().any(|p| mounts.contains(p.to_str().unwrap())), "{mounts}");
}

fn a_killed_lab_is_removed_by_the_next() {
    let mut doomed = children::command("doomed").spawn().unwrap();
    let said = children::wait_until_ready(&mut doomed);
    let numbers: Vec<u32> = said.lines().map(|line| line.parse().unwrap()).collect();
    let [owner, sleeper, unmarked] = numbers[..] else { panic!("{said}") };
    // Three hosts, each with a name and a mount. Looked at before its death: afterwards, any other lab that enters
    // may be faster than we.
    assert!(traces(owner).len() >= 6 && runs(sleeper) && runs(unmarked), "{:?}", traces(owner));
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    portway_lab::enter().unwrap();
    assert_eq!(traces(owner), Vec::<String>::new());
    assert!(!runs(sleeper) && !runs(unmarked));
}

fn a_running_lab_is_not_removed() {
    let namespace = Namespace::new("living").unwrap();
    let mut process = namespace.spawn(sleeper()).unwrap();
    let reaped = reap();
    let me = format!("portway.{}.", std::process::id());
    assert!(!reaped.namespaces.iter().any(|name| name.starts_with(&me)), "{reaped:?}");
    assert!(namespace.path().exists() && process.try_wait().unwrap().is_none());
    let pid = process.id();
    drop(process);
    eventually(Duration::from_secs(5), || if runs(pid) { Err("it still runs") } else { Ok(()) }).unwrap();
}

fn names_are_not_taken_twice() {
    let first = Namespace::new("twice").unwrap();
    let error = Namespace::new("twice").unwrap_err().to_string();
    assert!(error.starts_with("could not make network namespace twice: File exists"), "{error}");
    assert!(first.path().exists(), "the one that failed must not take the other's name along");
    let path = first.path().to_owned();
    drop(first);
    assert!(!Path::new(&path).exists());
}
