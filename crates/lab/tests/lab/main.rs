//! The lab itself, with real packets. A harness of its own, because a lab must be entered before there are threads.

mod agents;
mod children;
mod cleanup;
mod network;
mod packets;
mod privilege;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    // Some tests need a process of their own, to kill it or to be somebody else: this same program, with a role.
    if let Some(role) = children::role() {
        return children::play(&role);
    }
    match portway_lab::enter() {
        Ok(privilege) => eprintln!("entered the lab as {privilege:?}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
    let groups =
        [packets::trials(), network::trials(), agents::trials(), cleanup::trials(), privilege::trials()];
    libtest_mimic::run(&Arguments::from_args(), groups.into_iter().flatten().collect()).exit();
}

/// A test that fails by panicking.
fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || -> Result<(), Failed> {
        test();
        Ok(())
    })
}
