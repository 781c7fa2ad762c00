//! What the engine carries arrives as it was said, and ends as it was ended: whatever the sizes, whoever ends first,
//! whoever resets, and whether there are pipes to carry it in or not.
//!
//! The engine marks its connections, which takes privilege, so each test is in a network namespace of a lab.

mod copying;
mod crowd;
mod ground;
mod last_words;
mod noise;
mod script;
mod slow;
mod talk;
mod urgent;

use crate::crowd::{ground, play_all};
use crate::script::Script;
use libtest_mimic::{Arguments, Trial};
use portway_lab::Layout;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// What is drawn unless something else is asked for.
const SEED: u64 = 0x2026_0715;
/// Directions whose receiver has to find that all is well, unless `PORTWAY_TRANSFERS` asks for more: `make soak` does.
const TRANSFERS: u64 = 10_000;
/// Connections at a time.
const CLIENTS: usize = 48;

/// The seed and the one connection to play again, as `PORTWAY_BYTES=seed/number` asks for.
fn asked_for() -> (u64, Option<u64>) {
    let Ok(asked) = std::env::var("PORTWAY_BYTES") else { return (SEED, None) };
    let parse =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("PORTWAY_BYTES={asked}: not seed/number"));
    match asked.split_once('/') {
        Some((seed, number)) => (parse(seed), Some(parse(number))),
        None => (parse(&asked), None),
    }
}

fn transfers() -> u64 {
    let Ok(asked) = std::env::var("PORTWAY_TRANSFERS") else { return TRANSFERS };
    asked.parse().unwrap_or_else(|_| panic!("PORTWAY_TRANSFERS={asked}: not a number"))
}

/// How many connections it takes, if what their receivers may not hear of does not count.
fn connections(seed: u64, transfers: u64) -> u64 {
    let (mut number, mut certain) = (0, 0);
    while certain < transfers {
        certain += Script::draw(seed, number).certain();
        number += 1;
    }
    number
}

fn bytes_are_the_same_over_thousands_of_transfers() {
    let (seed, only) = asked_for();
    let transfers = transfers();
    let numbers = only.map_or_else(|| 0..connections(seed, transfers), |number| number..number + 1);
    let (ground, findings) = ground(None, 8, 8);
    play_all(&ground, &findings, seed, numbers.clone(), CLIENTS);
    findings.check(seed);
    ground.leave();
    findings.check(seed);
    println!("seed {seed}, {} connections: {findings:?}", numbers.end - numbers.start);
    let certain: u64 = numbers.clone().map(|number| Script::draw(seed, number).certain()).sum();
    let all = 2 * (numbers.end - numbers.start);
    assert!(findings.judged() >= certain && findings.judged() + findings.unknown() <= all, "{findings:?}");
    assert!(only.is_some() || findings.judged() >= transfers, "{findings:?}");
}

const TESTS: &[(&str, fn())] = &[
    ("bytes_are_the_same_over_thousands_of_transfers", bytes_are_the_same_over_thousands_of_transfers),
    ("copying::bytes_are_the_same_without_pipes", copying::bytes_are_the_same_without_pipes),
    (
        "copying::bytes_are_the_same_when_pipes_come_and_go",
        copying::bytes_are_the_same_when_pipes_come_and_go,
    ),
    (
        "copying::who_comes_when_there_are_too_many_is_refused_and_the_others_go_on",
        copying::who_comes_when_there_are_too_many_is_refused_and_the_others_go_on,
    ),
    ("last_words::who_has_to_leave_early_is_told_so", last_words::who_has_to_leave_early_is_told_so),
    (
        "last_words::who_refuses_the_rest_of_a_request_is_heard",
        last_words::who_refuses_the_rest_of_a_request_is_heard,
    ),
    ("noise::what_is_lost_doubled_or_moved_is_noticed", noise::what_is_lost_doubled_or_moved_is_noticed),
    (
        "slow::one_who_does_not_read_holds_nobody_up_and_little_is_held_for_them",
        slow::one_who_does_not_read_holds_nobody_up_and_little_is_held_for_them,
    ),
    ("urgent::urgent_bytes_are_no_end_before_the_end", urgent::urgent_bytes_are_no_end_before_the_end),
    ("urgent::urgent_bytes_keep_nothing_from_arriving", urgent::urgent_bytes_keep_nothing_from_arriving),
];

/// One test at a time: each counts the file descriptors of the process, those of labs included.
static ALONE: Mutex<()> = Mutex::new(());

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(e) = portway_lab::enter()
    {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        Trial::test(*name, move || -> Result<(), libtest_mimic::Failed> {
            let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            let lab = Layout { nodes: 1, pods_per_node: 0, clients: 0 }.build()?;
            lab.node(1).namespace().run(test);
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, TESTS.iter().map(trial).collect()).exit_code()
}
