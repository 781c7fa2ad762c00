//! Nothing is left: neither after a lab's end, nor, once the next one enters, after its death.

use crate::children::{self, runs, sleeper};
use crate::trial;
use libtest_mimic::Trial;
use portway_lab::{Layout, Namespace, eventually, reap};
use std::fs;
use std::path::Path;
use std::time::Duration;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("cleanup::a_dropped_lab_is_gone", a_dropped_lab_is_gone),
        trial("cleanup::a_killed_lab_is_gone_on_the_next_start", a_killed_lab_is_gone_on_the_next_start),
        trial("cleanup::a_living_lab_is_left_alone", a_living_lab_is_left_alone),
        trial("cleanup::names_are_not_taken_twice", names_are_not_taken_twice),
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

fn a_dropped_lab_is_gone() {
    let lab = Layout { nodes: 1, pods_per_node: 1, clients: 1 }.build().unwrap();
    let paths: Vec<_> = lab.places().map(|p| p.namespace().path().to_owned()).collect();
    // A process that nobody holds a handle of: it dies with the place it is in.
    let pid = lab.pod("pod1a").namespace().run(|| sleeper().spawn().unwrap().id());
    let held = lab.pod("pod1a").spawn(sleeper()).unwrap();
    assert!(paths.iter().all(|p| p.exists()) && runs(pid) && runs(held.id()));
    drop(lab);
    assert!(!paths.iter().any(|p| p.exists()) && !runs(pid) && !runs(held.id()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!paths.iter().any(|p| mounts.contains(p.to_str().unwrap())), "{mounts}");
}

fn a_killed_lab_is_gone_on_the_next_start() {
    let mut doomed = children::command("doomed").spawn().unwrap();
    let said = children::wait_until_ready(&mut doomed);
    let numbers: Vec<u32> = said.lines().map(|line| line.parse().unwrap()).collect();
    let [owner, sleeper, unmarked] = numbers[..] else { panic!("{said}") };
    // Three places, each with a name and a mount. Looked at before its death: afterwards, any other lab that enters
    // may be faster than we.
    assert!(traces(owner).len() >= 6 && runs(sleeper) && runs(unmarked), "{:?}", traces(owner));
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    portway_lab::enter().unwrap();
    assert_eq!(traces(owner), Vec::<String>::new());
    assert!(!runs(sleeper) && !runs(unmarked));
}

fn a_living_lab_is_left_alone() {
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
