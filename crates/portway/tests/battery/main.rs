//! The battery: every mode, both families, every behaviour, with real packets in the lab.

mod stage;

use libtest_mimic::{Arguments, Failed, Trial};
use portway_dataplane::battery::{Case, cases};
use portway_model::Family;
use stage::Stage;
use std::process::ExitCode;

/// The modes that exist. A behaviour that one cannot fulfil would be declared here, with the reason.
const MODES: &[&str] = &["nftables"];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(e) = portway_lab::enter()
    {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let mut trials = Vec::new();
    for mode in MODES {
        for family in Family::ALL {
            for case in cases() {
                let name = format!("{mode}::{family}::{}", case.name);
                trials.push(Trial::test(name, move || play(mode, family, case)));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn play(mode: &'static str, family: Family, case: Case) -> Result<(), Failed> {
    let mut stage = Stage::build(mode, family, case)?;
    let played = stage.play();
    played.map_err(|message| format!("{message}\n\n{}", stage.evidence()).into())
}
