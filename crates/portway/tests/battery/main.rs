//! The battery: every behaviour in every mode and both families, with real packets in the lab.

mod api;
mod input;
mod mode;
mod pods;
mod running;

use input::InputKind;
use mode::Mode;
use portway_lab::guest;
use portway_model::Family;
use portway_testkit::battery::{Case, FROM_PODS, SECTIONS};
use portway_testkit::harness::{self, Failed, Test};
use running::RunningCase;
use std::process::ExitCode;

/// All modes; iptables in both of its variants.
const MODES: &[Mode] =
    &[Mode::Nftables, Mode::IptablesNft, Mode::IptablesLegacy, Mode::Ipvs, Mode::Userspace];

/// The directory for the files of a guest.
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// The cases that a mode does not pass, and why.
const EXCEPTIONS: &[(&[Mode], Family, &str)] = &[
    // In this mode the relay serves node ports at loopback addresses by default (`localhostNodePorts`).
    (&[Mode::IptablesNft, Mode::IptablesLegacy], Family::V4, "node_port_not_on_loopback"),
    (&[Mode::IptablesNft, Mode::IptablesLegacy], Family::V6, "node_port_not_on_loopback"),
    // The kernel keeps affinity for as long as it keeps closed connections, which is minutes; the agent tests of the
    // mode wait for that.
    (&[Mode::Ipvs], Family::V4, "affinity_expires"),
    (&[Mode::Ipvs], Family::V6, "affinity_expires"),
    (&[Mode::Ipvs], Family::V4, "clients_move_between_pods_whose_target_ports_differ"),
    (&[Mode::Ipvs], Family::V6, "clients_move_between_pods_whose_target_ports_differ"),
    // The kernel keeps affinity by address and port. A virtual server for all addresses, selected by a mark, would not
    // translate the port to that of the endpoint (`ip_vs_sched_persist`).
    (&[Mode::Ipvs], Family::V4, "affinity_is_shared_by_all_frontends"),
    (&[Mode::Ipvs], Family::V6, "affinity_is_shared_by_all_frontends"),
];

/// The cases with slices that the controllers do not write.
const NOT_FROM_PODS: &[&str] = &[
    // Hints by hand, which are not those of a `trafficDistribution`; the cases `FROM_PODS` have those.
    "zone_hints",
    "node_hints",
    "node_changes_zone",
    // A slice is headless, and its Service is not.
    "services_of_other_proxies_and_headless_slices_are_ignored",
];

/// Modes in which pods see an address of the node instead of the client's, because the relay connects to them.
const SOURCE_IS_THE_NODE: &[Mode] = &[Mode::Userspace];

fn is_exception(mode: Mode, family: Family, case: &str) -> bool {
    EXCEPTIONS.iter().any(|(modes, f, c)| modes.contains(&mode) && *f == family && *c == case)
}

fn main() -> ExitCode {
    let mut tests = Vec::new();
    for mode in MODES.iter().copied() {
        let in_guest = mode == Mode::Ipvs && guest::is_needed();
        for family in Family::ALL {
            for (section, cases) in SECTIONS {
                for case in cases.iter().copied().filter(|c| !is_exception(mode, family, c.name)) {
                    let name = format!("{}::{family}::{section}::{}", mode.name(), case.name);
                    tests.push(if in_guest {
                        let test = name.clone();
                        Test::new(name, move || Ok(guest::run_test(&test, SCRATCH.as_ref())?))
                            .ignored(guest::is_unbootable())
                    } else {
                        Test::new(name, move || run(mode, InputKind::Manifests, family, case))
                    });
                }
            }
        }
    }
    tests.extend(from_pods());
    harness::run_in(portway_lab::enter, tests)
}

/// The cases with Pods as input: the controllers write the slices, which are the same for every mode.
fn from_pods() -> Vec<Test> {
    let mut tests = Vec::new();
    for family in Family::ALL {
        for (section, cases) in SECTIONS.iter().chain(FROM_PODS) {
            for case in cases.iter().copied().filter(|case| !NOT_FROM_PODS.contains(&case.name)) {
                let name = format!("pods::{family}::{section}::{}", case.name);
                tests.push(Test::new(name, move || run(Mode::Nftables, InputKind::Pods, family, case)));
            }
        }
    }
    tests
}

fn run(mode: Mode, input: InputKind, family: Family, case: Case) -> Result<(), Failed> {
    let mut case = RunningCase::build(mode, input, family, case)?;
    let result = case.run();
    result.map_err(|message| format!("{message}\n\n{}", case.diagnostics()).into())
}
