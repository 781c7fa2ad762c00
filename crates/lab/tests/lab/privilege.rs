//! A lab of an ordinary user, and the errors where it is not possible.

use crate::children;
use portway_testkit::harness::Test;
use std::process::Command;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::function("privilege::an_ordinary_user_has_a_lab", an_ordinary_user_has_a_lab),
        Test::function(
            "privilege::orphans_of_an_ordinary_user_are_removed",
            orphans_of_an_ordinary_user_are_removed,
        ),
        Test::function("privilege::without_user_namespaces_the_error_says_what_to_do", forbidden),
        Test::function("privilege::entering_with_other_threads_is_an_error", too_late),
    ]
}

/// Whether we can become another user: not where we are root only of a user namespace, which has just one. There the
/// whole suite runs as an ordinary user already.
fn can_become_nobody() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().nth(2).is_some_and(|count| count != "1")
}

fn say(mut command: Command) -> String {
    let mut child = command.spawn().unwrap();
    let said = children::wait_until_ready(&mut child);
    assert!(child.wait().unwrap().success());
    said
}

fn an_ordinary_user_has_a_lab() {
    if can_become_nobody() {
        assert_eq!(say(children::command_as_nobody("ordinary")).trim(), "UserNamespace");
    } else {
        assert_eq!(say(children::command("ordinary")).trim(), "Root");
    }
}

/// A killed lab in a user namespace takes its names along, but not its processes.
fn orphans_of_an_ordinary_user_are_removed() {
    let command = if can_become_nobody() { children::command_as_nobody } else { children::command };
    let mut doomed = command("doomed").spawn().unwrap();
    let said = children::wait_until_ready(&mut doomed);
    let sleeper = said.lines().nth(1).unwrap().parse().unwrap();
    assert!(children::runs(sleeper));
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    say(command("ordinary"));
    assert!(!children::runs(sleeper));
}

fn forbidden() {
    let said = say(children::command("forbidden"));
    for part in
        ["CAP_SYS_ADMIN", "could not unshare a user namespace", "sysctl user.max_user_namespaces=15000"]
    {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

fn too_late() {
    let said = say(children::command("threaded"));
    assert!(said.contains("it has 2: call enter() first thing in main"), "{said}");
}
