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

/// Tests that a guest plays at a time. It has one processor, and an agent that finds looking expensive looks less often.
const AT_A_TIME: usize = 1;
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
    let rooms: [(&str, &[Test]); 15] = [
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
    for (room, tests) in rooms {
        for (name, test) in tests {
            trials.push(Trial::test(format!("{room}::{name}"), move || play(*test)));
        }
    }
    for (room, tests) in userspace::ROOMS {
        let trial = |(name, test): &'static Test| {
            Trial::test(format!("userspace::{room}::{name}"), move || play(*test))
        };
        trials.extend(tests.iter().map(trial));
    }
    trials.extend(guest_room("userspace::with_iptables", userspace::WITH_IPTABLES, !guest::is_inside()));
    if !guest::has_module("ip_vs") {
        let trial = |(name, test): &'static Test| Trial::test(format!("ipvs::{name}"), move || play(*test));
        trials.extend(ipvs::WITHOUT.iter().map(trial));
    }
    trials.extend(ipvs::ROOMS.iter().flat_map(|(room, tests)| ipvs_room(room, tests)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A room whose tests need ip_vs: where this kernel has none, or it is to lose some of it, one trial, which plays them
/// all in a guest.
fn ipvs_room(room: &str, tests: &'static [Test]) -> Vec<Trial> {
    let elsewhere = guest::is_needed() || room == "modules" && !guest::is_inside();
    guest_room(&format!("ipvs::{room}"), tests, elsewhere)
}

/// A room whose tests are played here, or all of them in a guest as one trial.
fn guest_room(room: &str, tests: &'static [Test], elsewhere: bool) -> Vec<Trial> {
    if elsewhere {
        let room = room.to_owned();
        return vec![Trial::test(room.clone(), move || Ok(guest::play(&room, AT_A_TIME, SCRATCH.as_ref())?))];
    }
    let trial = |(name, test): &'static Test| Trial::test(format!("{room}::{name}"), move || play(*test));
    tests.iter().map(trial).collect()
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
