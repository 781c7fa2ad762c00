//! Bytes and ends of streams pass the relay unchanged: whatever the sizes, whichever side ends or resets first, with
//! pipes and without.
//!
//! The engine sets a mark on its sockets, which takes privilege, so each test runs in a network namespace of a lab.

mod descriptors;
mod fixture;
mod payload;
mod resets;
mod results;
mod script;
mod slow;
mod transfer;
mod urgent;

use crate::results::{fixture, run_all};
use crate::script::Script;
use libtest_mimic::{Arguments, Trial};
use portway_lab::Layout;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// The seed, unless `PORTWAY_BYTES` gives another.
const SEED: u64 = 0x2026_0715;
/// The number of directions whose receiver checks every byte, unless `PORTWAY_TRANSFERS` gives another, as `make soak`
/// does.
const TRANSFERS: u64 = 10_000;
/// The number of connections at a time.
const CLIENTS: usize = 48;

/// The seed and the one connection to repeat, as `PORTWAY_BYTES=seed/number` gives them.
fn requested() -> (u64, Option<u64>) {
    let Ok(value) = std::env::var("PORTWAY_BYTES") else { return (SEED, None) };
    let parse =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("PORTWAY_BYTES={value}: not seed/number"));
    match value.split_once('/') {
        Some((seed, number)) => (parse(seed), Some(parse(number))),
        None => (parse(&value), None),
    }
}

fn transfers() -> u64 {
    let Ok(value) = std::env::var("PORTWAY_TRANSFERS") else { return TRANSFERS };
    value.parse().unwrap_or_else(|_| panic!("PORTWAY_TRANSFERS={value}: not a number"))
}

/// How many connections are needed to check at least `transfers` directions.
fn connections(seed: u64, transfers: u64) -> u64 {
    let (mut number, mut guaranteed) = (0, 0);
    while guaranteed < transfers {
        guaranteed += Script::draw(seed, number).guaranteed_checks();
        number += 1;
    }
    number
}

fn bytes_are_the_same_over_thousands_of_transfers() {
    let (seed, only) = requested();
    let transfers = transfers();
    let numbers = only.map_or_else(|| 0..connections(seed, transfers), |number| number..number + 1);
    let (fixture, results) = fixture(None, 8, 8);
    run_all(&fixture, &results, seed, numbers.clone(), CLIENTS);
    results.check(seed);
    fixture.shut_down();
    results.check(seed);
    println!("seed {seed}, {} connections: {results:?}", numbers.end - numbers.start);
    let guaranteed: u64 = numbers.clone().map(|number| Script::draw(seed, number).guaranteed_checks()).sum();
    let all = 2 * (numbers.end - numbers.start);
    assert!(
        results.checked() >= guaranteed && results.checked() + results.unidentified() <= all,
        "{results:?}"
    );
    assert!(only.is_some() || results.checked() >= transfers, "{results:?}");
}

const TESTS: &[(&str, fn())] = &[
    ("bytes_are_the_same_over_thousands_of_transfers", bytes_are_the_same_over_thousands_of_transfers),
    ("descriptors::bytes_are_the_same_without_pipes", descriptors::bytes_are_the_same_without_pipes),
    (
        "descriptors::bytes_are_the_same_when_pipes_are_scarce",
        descriptors::bytes_are_the_same_when_pipes_are_scarce,
    ),
    (
        "descriptors::connections_beyond_the_limit_are_reset_and_open_ones_continue",
        descriptors::connections_beyond_the_limit_are_reset_and_open_ones_continue,
    ),
    (
        "resets::connections_cut_off_at_the_deadline_are_reset",
        resets::connections_cut_off_at_the_deadline_are_reset,
    ),
    (
        "resets::bytes_that_a_server_sent_before_a_reset_arrive",
        resets::bytes_that_a_server_sent_before_a_reset_arrive,
    ),
    (
        "payload::lost_doubled_and_moved_bytes_are_detected",
        payload::lost_doubled_and_moved_bytes_are_detected,
    ),
    (
        "slow::a_client_that_does_not_read_delays_no_other_connection_and_its_buffer_is_bounded",
        slow::a_client_that_does_not_read_delays_no_other_connection_and_its_buffer_is_bounded,
    ),
    (
        "urgent::urgent_data_is_not_taken_for_the_end_of_the_stream",
        urgent::urgent_data_is_not_taken_for_the_end_of_the_stream,
    ),
    ("urgent::bytes_after_urgent_data_arrive", urgent::bytes_after_urgent_data_arrive),
];

/// Tests run one at a time: each counts the file descriptors of the process, and labs have some too.
static ONE_TEST: Mutex<()> = Mutex::new(());

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
            let _one_test = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
            let lab = Layout { nodes: 1, pods_per_node: 0, clients: 0 }.build()?;
            lab.node(1).namespace().run(test);
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, TESTS.iter().map(trial).collect()).exit_code()
}
