//! Namespaces and processes of a lab are removed when it is dropped and, if its process was killed, when the next one
//! enters.

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
        Test::function("cleanup::a_name_cannot_be_used_twice", a_name_cannot_be_used_twice),
    ]
}

/// The names and mounts of the namespaces of an owner.
fn names_and_mounts(owner: u32) -> Vec<String> {
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
    // A process without a handle is killed when its namespace is removed.
    let pid = lab.pod("pod1a").namespace().run(|| sleeper().spawn().unwrap().id());
    let held = lab.pod("pod1a").spawn(sleeper()).unwrap();
    assert!(paths.iter().all(|p| p.exists()) && runs(pid) && runs(held.id()));
    drop(lab);
    assert!(!paths.iter().any(|p| p.exists()) && !runs(pid) && !runs(held.id()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!paths.iter().any(|p| mounts.contains(p.to_str().unwrap())), "{mounts}");
}

fn a_killed_lab_is_removed_by_the_next() {
    let mut killed = children::command("killed").spawn().unwrap();
    let output = children::wait_until_ready(&mut killed);
    let numbers: Vec<u32> = output.lines().map(|line| line.parse().unwrap()).collect();
    let [owner, sleeper, unmarked] = numbers[..] else { panic!("{output}") };
    // Three hosts, each with a name and a mount. Checked before the process is killed: after that, another lab that
    // enters may remove them before this test does.
    assert!(
        names_and_mounts(owner).len() >= 6 && runs(sleeper) && runs(unmarked),
        "{:?}",
        names_and_mounts(owner)
    );
    killed.kill().unwrap();
    killed.wait().unwrap();
    portway_lab::enter().unwrap();
    assert_eq!(names_and_mounts(owner), Vec::<String>::new());
    assert!(!runs(sleeper) && !runs(unmarked));
}

fn a_running_lab_is_not_removed() {
    let namespace = Namespace::new("running").unwrap();
    let mut process = namespace.spawn(sleeper()).unwrap();
    let reaped = reap();
    let prefix = format!("portway.{}.", std::process::id());
    assert!(!reaped.namespaces.iter().any(|name| name.starts_with(&prefix)), "{reaped:?}");
    assert!(namespace.path().exists() && process.try_wait().unwrap().is_none());
    let pid = process.id();
    drop(process);
    eventually(Duration::from_secs(5), || if runs(pid) { Err("it still runs") } else { Ok(()) }).unwrap();
}

fn a_name_cannot_be_used_twice() {
    let first = Namespace::new("twice").unwrap();
    let error = Namespace::new("twice").unwrap_err().to_string();
    assert!(error.starts_with("could not create network namespace twice: File exists"), "{error}");
    assert!(first.path().exists(), "the failed creation must not remove the existing name");
    let path = first.path().to_owned();
    drop(first);
    assert!(!Path::new(&path).exists());
}
