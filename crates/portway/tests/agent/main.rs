//! The `portway` binary in the lab, with a directory of manifests as its input. The tests check its log, its HTTP pages
//! and its effect on the node.
//!
//! The battery covers forwarding; these tests cover which errors are logged, which rules stay when the agent or a tool
//! fails, and that rules of other programs are not changed.

mod agent_lab;
mod config;
mod documented_rules;
mod drift;
mod faults;
mod faulty_tools;
mod foreign_rules;
mod forward_policy;
mod hidden_tools;
mod http;
mod input;
mod iptables;
mod ipvs;
mod kubeadm;
mod lifecycle;
mod localhost;
mod metrics;
mod mode_change;
mod node;
mod objects;
mod ports;
mod privilege;
mod status;
mod takeover;
mod tampering;
mod tool;
mod traffic;
mod userspace;

use agent_lab::AgentLab;
use portway_lab::guest;
use portway_testkit::harness::{self, Failed};
use std::process::ExitCode;

/// The result of a test.
type Outcome = Result<(), Failed>;

/// A test and its name.
type Test = (&'static str, fn(&mut AgentLab) -> Outcome);

/// The directory for the files of a guest.
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn main() -> ExitCode {
    let sections: [(&str, &'static [Test]); 17] = [
        ("status", status::TESTS),
        ("input", input::TESTS),
        ("config", config::TESTS),
        ("privilege", privilege::TESTS),
        ("ports", ports::TESTS),
        ("drift", drift::TESTS),
        ("lifecycle", lifecycle::TESTS),
        ("node", node::TESTS),
        ("mode_change", mode_change::TESTS),
        ("takeover", takeover::TESTS),
        ("faults", faults::TESTS),
        ("tampering", tampering::TESTS),
        ("kubeadm", kubeadm::TESTS),
        ("localhost", localhost::TESTS),
        ("forward_policy", forward_policy::TESTS),
        ("iptables", iptables::TESTS),
        ("documented_rules", documented_rules::TESTS),
    ];
    let mut tests = Vec::new();
    for (name, section) in sections {
        tests.extend(section_tests(name, section, false));
    }
    for (name, section) in userspace::GROUPS {
        tests.extend(section_tests(&format!("userspace::{name}"), section, false));
    }
    tests.extend(section_tests("userspace::with_iptables", userspace::WITH_IPTABLES, !guest::is_inside()));
    if !guest::has_module("ip_vs") {
        tests.extend(section_tests("ipvs", ipvs::WITHOUT_IP_VS, false));
    }
    for (name, section) in ipvs::SECTIONS {
        // Modules can be hidden in a guest only.
        let in_guest = guest::is_needed() || *name == "modules" && !guest::is_inside();
        tests.extend(section_tests(&format!("ipvs::{name}"), section, in_guest));
    }
    harness::run_in(portway_lab::enter, tests)
}

/// The tests of a section, run by this process or each in a guest.
fn section_tests(
    section: &str,
    tests: &'static [Test],
    in_guest: bool,
) -> impl Iterator<Item = harness::Test> {
    tests.iter().map(move |(name, test)| {
        let name = format!("{section}::{name}");
        if !in_guest {
            return harness::Test::new(name, move || run(*test));
        }
        let test = name.clone();
        harness::Test::new(name, move || Ok(guest::run_test(&test, SCRATCH.as_ref())?))
            .ignored(guest::is_unbootable())
    })
}

fn run(test: fn(&mut AgentLab) -> Outcome) -> Outcome {
    let mut lab = AgentLab::build()?;
    test(&mut lab).map_err(|failed| {
        let message = failed.message().unwrap_or("the test failed");
        format!("{message}\n\n{}", lab.diagnostics()).into()
    })
}

/// Fails with a message unless a condition holds.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message().into()) }
}
