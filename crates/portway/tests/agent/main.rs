//! The agent as an operator meets it: the binary itself, in the lab, fed with files, asked over HTTP, read by its log.
//!
//! The battery tells whether packets arrive; this tells what is said when something is wrong, what stays when
//! something breaks, and that nobody else's rules are touched.

mod config;
mod drift;
mod faults;
mod hidden;
mod http;
mod input;
mod iptables;
mod ipvs;
mod life;
mod localhost;
mod metrics;
mod node;
mod objects;
mod others;
mod ports;
mod privilege;
mod seeds;
mod status;
mod switch;
mod takeover;
mod tampering;
mod tool;
mod traffic;
mod userspace;
mod world;
mod wrapped;

use libtest_mimic::{Arguments, Failed, Trial};
use portway_lab::guest;
use std::process::ExitCode;
use world::World;

/// What a test comes to.
type Outcome = Result<(), Failed>;

/// A test and what it is called.
type Test = (&'static str, fn(&mut World) -> Outcome);

/// Where a guest has files of its own.
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(e) = portway_lab::enter()
    {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let rooms: [(&str, &'static [Test]); 15] = [
        ("status", status::TESTS),
        ("input", input::TESTS),
        ("config", config::TESTS),
        ("privilege", privilege::TESTS),
        ("ports", ports::TESTS),
        ("drift", drift::TESTS),
        ("life", life::TESTS),
        ("node", node::TESTS),
        ("switch", switch::TESTS),
        ("takeover", takeover::TESTS),
        ("faults", faults::TESTS),
        ("tampering", tampering::TESTS),
        ("localhost", localhost::TESTS),
        ("iptables", iptables::TESTS),
        ("seeds", seeds::TESTS),
    ];
    let mut trials = Vec::new();
    for (name, tests) in rooms {
        trials.extend(room(name, tests, false));
    }
    for (name, tests) in userspace::ROOMS {
        trials.extend(room(&format!("userspace::{name}"), tests, false));
    }
    trials.extend(room("userspace::with_iptables", userspace::WITH_IPTABLES, !guest::is_inside()));
    if !guest::has_module("ip_vs") {
        trials.extend(room("ipvs", ipvs::WITHOUT, false));
    }
    for (name, tests) in ipvs::ROOMS {
        // A host's modules are not hidden.
        let in_guest = guest::is_needed() || *name == "modules" && !guest::is_inside();
        trials.extend(room(&format!("ipvs::{name}"), tests, in_guest));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Tests that are played here, or each of them in a guest.
fn room(room: &str, tests: &'static [Test], in_guest: bool) -> impl Iterator<Item = Trial> {
    tests.iter().map(move |(name, test)| {
        let name = format!("{room}::{name}");
        if !in_guest {
            return Trial::test(name, move || play(*test));
        }
        let played = name.clone();
        let trial = Trial::test(name, move || Ok(guest::play(&played, SCRATCH.as_ref())?));
        trial.with_ignored_flag(guest::is_unbootable())
    })
}

fn play(test: fn(&mut World) -> Outcome) -> Outcome {
    let mut world = World::build()?;
    test(&mut world).map_err(|failed| {
        let why = failed.message().unwrap_or("it failed");
        format!("{why}\n\n{}", world.evidence()).into()
    })
}

/// Fails with a message unless something holds.
fn ensure(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message().into()) }
}
