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
mod world;
mod wrapped;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use world::World;

/// What a test comes to.
type Outcome = Result<(), Failed>;

/// A test and what it is called.
type Test = (&'static str, fn(&mut World) -> Outcome);

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
    libtest_mimic::run(&arguments, trials).exit_code()
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
