//! Agents: processes in a node, and what they say.

use crate::{children, trial};
use libtest_mimic::Trial;
use portway_lab::{Agent, AgentError, Layout, Namespace};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Duration;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("agents::run_where_they_should", run_where_they_should),
        trial("agents::end_when_asked", end_when_asked),
        trial("agents::that_end_early_are_noticed", that_end_early_are_noticed),
        trial("agents::that_cannot_start_are_told", that_cannot_start_are_told),
        trial("agents::closures_run_where_they_should", closures_run_where_they_should),
    ]
}

const SOON: Duration = Duration::from_secs(10);

fn run_where_they_should() {
    let lab = Layout { nodes: 2, pods_per_node: 0, clients: 0 }.build().unwrap();
    let mut agent = Agent::run(lab.node(2), children::command("agent")).unwrap();
    assert_eq!(agent.wait_for("on stderr", SOON).unwrap(), "a word on stderr");
    agent.wait_for("ready", SOON).unwrap();
    assert_eq!(agent.log().count("network namespace"), 1);
    let inode = |path: &Path| path.metadata().unwrap().ino();
    let its = inode(Path::new(&format!("/proc/{}/ns/net", agent.id())));
    assert_eq!(its, inode(lab.node(2).namespace().path()));
    assert_ne!(its, inode(lab.node(1).namespace().path()));
    let error = agent.wait_for("what it never says", Duration::from_millis(100)).unwrap_err();
    assert!(matches!(&error, AgentError::TimedOut { log, .. } if log.contains("ready")), "{error}");
    assert!(agent.kill().contains("starting"));
}

fn end_when_asked() {
    let namespace = Namespace::new("asked").unwrap();
    let mut agent = Agent::run(&namespace, children::command("agent")).unwrap();
    agent.wait_for("ready", SOON).unwrap();
    let (status, log) = agent.terminate().unwrap();
    assert_eq!(status.signal(), Some(15));
    assert!(log.contains("ready"));
}

fn that_end_early_are_noticed() {
    let namespace = Namespace::new("early").unwrap();
    let program = std::env::current_exe().unwrap();
    let mut agent = Agent::start(&namespace, &program, ["--no-such-flag"]).unwrap();
    let error = agent.wait_for("ready", SOON).unwrap_err();
    assert!(matches!(&error, AgentError::Ended { log, .. } if log.contains("no-such-flag")), "{error}");
}

fn that_cannot_start_are_told() {
    let namespace = Namespace::new("nothing").unwrap();
    let error = Agent::start(&namespace, Path::new("/no/such/program"), ["x"]).unwrap_err().to_string();
    assert!(error.starts_with("could not start /no/such/program in nothing: No such file"), "{error}");
}

fn closures_run_where_they_should() {
    let namespace = Namespace::new("closures").unwrap();
    let own = || Path::new("/proc/thread-self/ns/net").metadata().unwrap().ino();
    let inside = namespace.run(own);
    assert_eq!(inside, namespace.path().metadata().unwrap().ino());
    assert_ne!(inside, own());
    // So do threads that they start, and a panic comes out where it belongs.
    assert_eq!(namespace.run(|| std::thread::spawn(own).join().unwrap()), inside);
    let panicked = catch_unwind(|| namespace.run(|| resume_unwind(Box::new("expected"))));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"expected"));
}
