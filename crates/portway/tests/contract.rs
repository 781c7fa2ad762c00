//! The contract between agent and mode, checked with the noop mode and with the modes that need no guest kernel.

use portway_dataplane::Mode;
use portway_lab::Namespace;
use portway_testkit::contract;
use portway_testkit::harness::{self, Failed, Test};
use std::process::ExitCode;

const MODES: [(&str, &dyn Mode); 3] = [
    ("noop", portway_noop::MODE),
    ("nftables", portway_nftables::MODE),
    ("iptables", portway_iptables::MODE),
];

fn main() -> ExitCode {
    let test = |(name, mode): (&'static str, &'static dyn Mode)| {
        Test::new(name, move || -> Result<(), Failed> {
            Namespace::new(&format!("contract-{name}"))?.run(|| contract::check(mode));
            Ok(())
        })
    };
    harness::run_in(portway_lab::enter, MODES.map(test).into())
}
