//! A fresh network namespace for a test.
//!
//! The lab, which has more of this, is built upon this crate; here a thread that leaves its namespace is enough. Who
//! is not root runs the test once more as root of a user namespace.

use portway_netlink::namespace::unshare_network;
use std::process::{Command, Output};
use std::thread;

/// Set for the second run: what is refused there is refused for good.
const AGAIN: &str = "PORTWAY_TEST_USER_NAMESPACE";

/// Runs `test` in a network namespace where nobody has been before. Processes it starts are in there, too.
pub(crate) fn alone(test: impl FnOnce() + Send) {
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
        assert!(std::env::var_os(AGAIN).is_none(), "no network namespace even as root of our own: {error}");
        again();
    }
}

/// The test that this thread runs, by itself, as root of a user namespace.
fn again() {
    let thread = thread::current();
    // With a single test thread the harness runs tests on the main one, which does not know their names.
    let test = thread.name().filter(|name| *name != "main").expect("root, or more than one test thread");
    let this = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount"]).arg(this);
    command.args(["--exact", test, "--nocapture", "--test-threads=2"]).env(AGAIN, "1");
    let output = command.output().expect("unshare is installed");
    let text = told(&output);
    assert!(output.status.success() && text.contains("1 passed"), "as root of a user namespace:\n{text}");
}

/// Runs a program that must succeed; what it printed comes back.
pub(crate) fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        // Root of a user namespace may not write where iptables keeps its lock; any file can be locked.
        .env("XTABLES_LOCKFILE", "/dev/null")
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    let text = told(&output);
    assert!(output.status.success(), "{program} {arguments}: {text}");
    text
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
