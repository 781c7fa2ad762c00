//! The contract between agent and mode, checked with every registered mode and with the noop mode.

use portway_lab::{Namespace, guest};
use portway_proxy::modes::MODES;
use portway_testkit::contract::{self, Subject};
use portway_testkit::harness::{self, Failed, Test};
use std::process::{Command, ExitCode};

/// The directory for the files of a guest.
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn main() -> ExitCode {
    let noop = Subject { mode: portway_noop::MODE, modes: &[portway_noop::MODE], relaunch };
    let registered = MODES.iter().map(|mode| Subject { mode: *mode, modes: MODES, relaunch });
    let tests = [noop].into_iter().chain(registered).map(|subject| {
        let name = subject.mode.name();
        // The kernel of the host may not have ip_vs.
        if name == "ipvs" && guest::is_needed() {
            return Test::new(name, move || Ok(guest::run_test(name, SCRATCH.as_ref())?))
                .ignored(guest::is_unbootable());
        }
        Test::new(name, move || run(subject))
    });
    harness::run_in(portway_lab::enter, tests.collect())
}

fn relaunch(subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portway"));
    command.arg(subcommand);
    command
}

fn run(subject: Subject) -> Result<(), Failed> {
    let namespace = Namespace::new(&format!("contract-{}", subject.mode.name()))?;
    // A node has an address; ip_vs refuses endpoints in a namespace without any.
    let up = namespace
        .run(|| Command::new("ip").args(["address", "add", "192.168.50.11/24", "dev", "lo"]).status());
    assert!(up?.success(), "an address could not be added");
    namespace.run(|| contract::check(&subject));
    Ok(())
}
