//! Tests of the lab itself, with real packets. They have a `main` of their own, because a lab must be entered before
//! there are threads.

mod agents;
mod children;
mod cleanup;
mod network;
mod packets;
mod privilege;

use portway_testkit::harness;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Some tests need a process to kill, or one of another user: this same program, in a role.
    if let Some(role) = children::role() {
        children::run(&role);
        return ExitCode::SUCCESS;
    }
    let groups = [packets::tests(), network::tests(), agents::tests(), cleanup::tests(), privilege::tests()];
    harness::run_in(portway_lab::enter, groups.into_iter().flatten().collect())
}
