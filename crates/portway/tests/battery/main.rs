//! The battery: every mode, both families, every behaviour, with real packets in the lab.

mod mode;
mod stage;

use libtest_mimic::{Arguments, Failed, Trial};
use mode::Mode;
use portway_dataplane::battery::{Case, cases};
use portway_model::Family;
use stage::Stage;
use std::process::ExitCode;

/// The modes that exist; iptables in both of its variants.
const MODES: &[Mode] = &[Mode::Nftables, Mode::IptablesNft, Mode::IptablesLegacy];

/// What a mode does not fulfil, and why.
const EXCEPTIONS: &[(&[Mode], Family, &str)] = &[
    // It is the one mode in which node ports answer at 127.0.0.1, in IPv4 (`localhostNodePorts`).
    (&[Mode::IptablesNft, Mode::IptablesLegacy], Family::V4, "node_port_not_on_loopback"),
];

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
        for family in Family::ALL {
            for case in cases().into_iter().filter(|c| !is_exception(mode, family, c.name)) {
                let name = format!("{}::{family}::{}", mode.name(), case.name);
                trials.push(Trial::test(name, move || play(mode, family, case)));
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
