//! The battery: every mode, both families, every behaviour, with real packets in the lab.

mod mode;
mod stage;

use libtest_mimic::{Arguments, Failed, Trial};
use mode::Mode;
use portway_dataplane::battery::{Case, SECTIONS};
use portway_lab::guest;
use portway_model::Family;
use stage::Stage;
use std::process::ExitCode;

/// The modes that exist; iptables in both of its variants.
const MODES: &[Mode] =
    &[Mode::Nftables, Mode::IptablesNft, Mode::IptablesLegacy, Mode::Ipvs, Mode::Userspace];

/// Cases that a guest plays at a time: they mostly wait. Those that count lost connections under load have it to
/// themselves.
fn at_a_time(section: &str) -> usize {
    if section == "faults" { 1 } else { 3 }
}

/// Where a guest has files of its own.
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

/// What a mode does not fulfil, and why.
const EXCEPTIONS: &[(&[Mode], Family, &str)] = &[
    // It is the one mode in which node ports answer at 127.0.0.1, in IPv4 (`localhostNodePorts`).
    (&[Mode::IptablesNft, Mode::IptablesLegacy], Family::V4, "node_port_not_on_loopback"),
    // The kernel remembers a client for as long as it remembers its closed connections, which is minutes; the mode's
    // own tests have the patience.
    (&[Mode::Ipvs], Family::V4, "affinity_expires"),
    (&[Mode::Ipvs], Family::V6, "affinity_expires"),
    (&[Mode::Ipvs], Family::V4, "clients_move_between_pods_whose_target_ports_differ"),
    (&[Mode::Ipvs], Family::V6, "clients_move_between_pods_whose_target_ports_differ"),
    // It remembers clients by the address and port they use. A server of all addresses, known by a mark, would send
    // them to the port that they asked for instead of the endpoint's (`ip_vs_sched_persist`).
    (&[Mode::Ipvs], Family::V4, "affinity_is_shared_by_all_frontends"),
    (&[Mode::Ipvs], Family::V6, "affinity_is_shared_by_all_frontends"),
];

/// Modes in which pods see a node's address, whoever the client is: somebody else carries its connection. All else holds.
const SHOWS_THE_NODE: &[Mode] = &[Mode::Userspace];

fn is_exception(mode: Mode, family: Family, case: &str) -> bool {
    EXCEPTIONS.iter().any(|(modes, f, c)| modes.contains(&mode) && *f == family && *c == case)
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(e) = portway_lab::enter()
    {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let mut trials = Vec::new();
    for mode in MODES.iter().copied() {
        // A boot takes as long as a case does, so a guest plays a whole section.
        let elsewhere = mode == Mode::Ipvs && guest::is_needed();
        for family in Family::ALL {
            for (section, cases) in SECTIONS {
                let about = format!("{}::{family}::{section}", mode.name());
                if elsewhere {
                    let name = about.clone();
                    let elsewhere = move || Ok(guest::play(&about, at_a_time(section), SCRATCH.as_ref())?);
                    trials.push(Trial::test(name, elsewhere));
                    continue;
                }
                for case in cases.iter().copied().filter(|c| !is_exception(mode, family, c.name)) {
                    trials.push(Trial::test(format!("{about}::{}", case.name), move || {
                        play(mode, family, case)
                    }));
                }
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn play(mode: Mode, family: Family, case: Case) -> Result<(), Failed> {
    let mut stage = Stage::build(mode, family, case)?;
    let played = stage.play();
    played.map_err(|message| format!("{message}\n\n{}", stage.evidence()).into())
}
