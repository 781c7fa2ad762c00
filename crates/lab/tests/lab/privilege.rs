//! A lab of an ordinary user, and the errors where a lab cannot be entered.

use crate::children;
use portway_testkit::harness::Test;
use std::process::Command;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::function("privilege::an_ordinary_user_can_build_a_lab", an_ordinary_user_can_build_a_lab),
        Test::function(
            "privilege::orphans_of_an_ordinary_user_are_removed",
            orphans_of_an_ordinary_user_are_removed,
        ),
        Test::function("privilege::without_user_namespaces_the_error_names_the_sysctl", forbidden),
        Test::function("privilege::entering_with_other_threads_is_an_error", too_late),
    ]
}

/// Whether this process can start children as another user. Root of a user namespace with a single user cannot; there
/// all tests run as an ordinary user already.
fn can_become_nobody() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().nth(2).is_some_and(|count| count != "1")
}

fn output_of(mut command: Command) -> String {
    let mut child = command.spawn().unwrap();
    let output = children::wait_until_ready(&mut child);
    assert!(child.wait().unwrap().success());
    output
}

fn an_ordinary_user_can_build_a_lab() {
    if can_become_nobody() {
        assert_eq!(output_of(children::command_as_nobody("ordinary")).trim(), "UserNamespace");
    } else {
        assert_eq!(output_of(children::command("ordinary")).trim(), "Root");
    }
}

/// When a lab in a user namespace is killed, the names of its namespaces end with it, but its processes do not.
fn orphans_of_an_ordinary_user_are_removed() {
    let command = if can_become_nobody() { children::command_as_nobody } else { children::command };
    let mut killed = command("killed").spawn().unwrap();
    let output = children::wait_until_ready(&mut killed);
    let sleeper = output.lines().nth(1).unwrap().parse().unwrap();
    assert!(children::runs(sleeper));
    killed.kill().unwrap();
    killed.wait().unwrap();
    output_of(command("ordinary"));
    assert!(!children::runs(sleeper));
}

fn forbidden() {
    let output = output_of(children::command("forbidden"));
    for part in
        ["CAP_SYS_ADMIN", "could not unshare a user namespace", "sysctl user.max_user_namespaces=15000"]
    {
        assert!(output.contains(part), "{part} is not in: {output}");
    }
}

fn too_late() {
    let output = output_of(children::command("threaded"));
    assert!(output.contains("it has 2: call enter() first thing in main"), "{output}");
}
