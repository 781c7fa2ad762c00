//! A new network namespace for a test.
//!
//! A thread in a new namespace is enough here; the lab, which has more features, depends on this crate. Without root
//! privileges, the test runs again as root of a user namespace.

use portway_netlink::namespace::unshare_network;
use std::process::{Command, Output};
use std::thread;

/// This variable is set in the run as root of a user namespace, which is not repeated.
const IN_USER_NAMESPACE: &str = "PORTWAY_TEST_USER_NAMESPACE";

/// Runs `test` in a new network namespace. Processes that it starts are in the same namespace.
pub(crate) fn in_new_namespace(test: impl FnOnce() + Send) {
    let entered = thread::scope(|scope| {
        let work = || {
            let entered = unshare_network();
            if entered.is_ok() {
                test();
            }
            entered
        };
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Err(error) = entered {
        assert!(
            std::env::var_os(IN_USER_NAMESPACE).is_none(),
            "no network namespace even as root of a user namespace: {error}"
        );
        repeat_in_user_namespace();
    }
}

/// Runs the test of this thread again, as root of a user namespace.
fn repeat_in_user_namespace() {
    let thread = thread::current();
    // With a single test thread the harness runs tests on the main thread, which does not have the test's name.
    let test = thread.name().filter(|name| *name != "main").expect("root, or more than one test thread");
    let this = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount"]).arg(this);
    command.args(["--exact", test, "--nocapture", "--test-threads=2"]).env(IN_USER_NAMESPACE, "1");
    let output = command.output().expect("unshare is installed");
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("1 passed"), "as root of a user namespace:\n{text}");
}

/// Runs a program that must succeed; returns its output.
pub(crate) fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        // Root of a user namespace may not create iptables' lock file in its default directory.
        .env("XTABLES_LOCKFILE", "/dev/null")
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    let text = text_of(&output);
    assert!(output.status.success(), "{program} {arguments}: {text}");
    text
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
