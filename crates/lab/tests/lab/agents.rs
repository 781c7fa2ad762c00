//! Agents: processes in a namespace, and their output.

use crate::children;
use portway_lab::{Agent, AgentError, Layout, Namespace};
use portway_testkit::harness::Test;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::panic::{catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::function("agents::an_agent_runs_in_its_namespace", an_agent_runs_in_its_namespace),
        Test::function("agents::an_agent_ends_when_terminated", an_agent_ends_when_terminated),
        Test::function("agents::an_agent_that_ends_early_is_reported", an_agent_that_ends_early_is_reported),
        Test::function(
            "agents::an_agent_that_cannot_start_is_reported",
            an_agent_that_cannot_start_is_reported,
        ),
        Test::function("agents::a_closure_runs_in_the_namespace", a_closure_runs_in_the_namespace),
    ]
}

const SOON: Duration = Duration::from_secs(10);

fn an_agent_runs_in_its_namespace() {
    let lab = Layout { nodes: 2, pods_per_node: 0, clients: 0 }.build().unwrap();
    let mut agent = Agent::run(lab.node(2), children::command("agent")).unwrap();
    assert_eq!(agent.wait_for("on stderr", SOON).unwrap(), "a line on stderr");
    agent.wait_for("ready", SOON).unwrap();
    assert_eq!(agent.log().count("network namespace"), 1);
    let inode = |path: &Path| path.metadata().unwrap().ino();
    let of_agent = inode(Path::new(&format!("/proc/{}/ns/net", agent.id())));
    assert_eq!(of_agent, inode(lab.node(2).namespace().path()));
    assert_ne!(of_agent, inode(lab.node(1).namespace().path()));
    let error = agent.wait_for("a line that it never writes", Duration::from_millis(100)).unwrap_err();
    assert!(matches!(&error, AgentError::TimedOut { log, .. } if log.contains("ready")), "{error}");
    assert!(agent.kill().contains("starting"));
}

fn an_agent_ends_when_terminated() {
    let namespace = Namespace::new("terminated").unwrap();
    let mut agent = Agent::run(&namespace, children::command("agent")).unwrap();
    agent.wait_for("ready", SOON).unwrap();
    let (status, log) = agent.terminate().unwrap();
    assert_eq!(status.signal(), Some(15));
    assert!(log.contains("ready"));
}

fn an_agent_that_ends_early_is_reported() {
    let namespace = Namespace::new("early").unwrap();
    let program = std::env::current_exe().unwrap();
    let mut agent = Agent::start(&namespace, &program, ["--no-such-flag"]).unwrap();
    let error = agent.wait_for("ready", SOON).unwrap_err();
    assert!(matches!(&error, AgentError::Ended { log, .. } if log.contains("no-such-flag")), "{error}");
}

fn an_agent_that_cannot_start_is_reported() {
    let namespace = Namespace::new("nothing").unwrap();
    let error = Agent::start(&namespace, Path::new("/no/such/program"), ["x"]).unwrap_err().to_string();
    assert!(error.starts_with("could not start /no/such/program in nothing: No such file"), "{error}");
}

fn a_closure_runs_in_the_namespace() {
    let namespace = Namespace::new("closures").unwrap();
    let own = || Path::new("/proc/thread-self/ns/net").metadata().unwrap().ino();
    let inside = namespace.run(own);
    assert_eq!(inside, namespace.path().metadata().unwrap().ino());
    assert_ne!(inside, own());
    // Threads that it starts are in the namespace too, and a panic is passed on to the caller.
    assert_eq!(namespace.run(|| std::thread::spawn(own).join().unwrap()), inside);
    let panicked = catch_unwind(|| namespace.run(|| resume_unwind(Box::new("expected"))));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"expected"));
}
