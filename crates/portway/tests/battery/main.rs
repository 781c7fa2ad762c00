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
        let in_guest = mode == Mode::Ipvs && guest::is_needed();
        for family in Family::ALL {
            for (section, cases) in SECTIONS {
                for case in cases.iter().copied().filter(|c| !is_exception(mode, family, c.name)) {
                    let name = format!("{}::{family}::{section}::{}", mode.name(), case.name);
                    trials.push(if in_guest {
                        let played = name.clone();
                        let trial = Trial::test(name, move || Ok(guest::play(&played, SCRATCH.as_ref())?));
                        trial.with_ignored_flag(guest::is_unbootable())
                    } else {
                        Trial::test(name, move || play(mode, family, case))
                    });
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
