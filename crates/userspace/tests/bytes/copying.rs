//! When file descriptors are scarce: bytes are copied where there is no pipe for them, and who comes when there are as many
//! connections as there may be is refused, while the others go on.

use crate::crowd::{Findings, ground};
use crate::ground::{Ground, eventually};
use crate::script::{Role, Script};
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Connections that the engine may have in these tests. So few are left no part that is for pipes alone: with all of them
/// open there is none.
const MOST: usize = 16;
/// Two for each, and what the engine keeps free.
const DESCRIPTORS: u64 = 64 + 2 * MOST as u64;
const SEED: u64 = 0x000C_0B1E;

/// One more connection besides those that are open. Somebody else's pipe may be in the way for a moment, so whoever is
/// refused comes again.
fn enter(ground: &Ground, others: usize) -> TcpStream {
    let begin = Instant::now();
    loop {
        let stream = ground.connect(others).unwrap();
        while stream.take_error().unwrap().is_none() {
            if ground.engine.open() > others {
                return stream;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "neither accepted nor refused");
            std::thread::yield_now();
        }
    }
}

/// Clients who say nothing, but take descriptors.
struct Idle(Vec<TcpStream>);

impl Idle {
    fn new(ground: &Ground, number: usize) -> Idle {
        Idle((0..number).map(|others| enter(ground, others)).collect())
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        // To the servers they are connections of which nobody knows which ones they would have been.
        self.0.iter().for_each(|stream| sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap());
    }
}

/// Plays some connections at the same time. None begins before all are there and take what descriptors there are, so each
/// begins without a pipe, and may get one in the middle when another one has ended.
fn play_together(ground: &Ground, findings: &Findings, numbers: &[u64]) {
    let idle = MOST - numbers.len();
    let streams: Vec<TcpStream> = (idle..MOST).map(|others| enter(ground, others)).collect();
    std::thread::scope(|scope| {
        for (stream, number) in streams.into_iter().zip(numbers) {
            scope.spawn(move || findings.play(stream, Role::Client, Script::draw(SEED, *number)));
        }
    });
    // Those who come next need what these had.
    eventually("these have left", || ground.engine.open() == idle);
}

/// Connections of all kinds, but with more long ones among them than usual: only those meet a socket that is full.
fn some_of_all_kinds(connections: u64, long: usize) -> Vec<u64> {
    let is_long = |number: &u64| Script::draw(SEED, *number).is_long();
    let mut long: Vec<u64> = (connections..).filter(is_long).take(long).collect();
    let each = connections as usize / long.len();
    let mix = |number: u64| {
        [number].into_iter().chain((number as usize).is_multiple_of(each).then(|| long.pop()).flatten())
    };
    (0..connections).flat_map(mix).collect()
}

fn bytes_are_the_same(together: usize, numbers: &[u64]) {
    let (ground, findings) = ground(Some(DESCRIPTORS), 4, MOST);
    let idle = Idle::new(&ground, MOST - together);
    for numbers in numbers.chunks_exact(together) {
        play_together(&ground, &findings, numbers);
        findings.check(SEED);
    }
    drop(idle);
    ground.leave();
    findings.check(SEED);
    let played = &numbers[..numbers.len() / together * together];
    let certain: u64 = played.iter().map(|number| Script::draw(SEED, *number).certain()).sum();
    assert!(findings.judged() >= certain, "{certain}: {findings:?}");
}

pub(crate) fn bytes_are_the_same_without_pipes() {
    bytes_are_the_same(1, &some_of_all_kinds(480, 40));
}

pub(crate) fn bytes_are_the_same_when_pipes_come_and_go() {
    bytes_are_the_same(MOST - 4, &some_of_all_kinds(680, 40));
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..bytes]).is_err() {
            return;
        }
    }
}

/// Says something, and expects to hear it again.
fn goes_on(mut stream: &TcpStream, said: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(said)?;
    let mut heard = vec![0; said.len()];
    stream.read_exact(&mut heard)?;
    assert_eq!(heard, said);
    Ok(())
}

pub(crate) fn who_comes_when_there_are_too_many_is_refused_and_the_others_go_on() {
    let ground = Ground::new(Some(DESCRIPTORS), 2, MOST, echo);
    let mut open: Vec<TcpStream> = Vec::new();
    // Those who close make room for as many others, again and again.
    for (round, close) in [0, 3, MOST, 1].into_iter().enumerate() {
        open.truncate(open.len() - close.min(open.len()));
        eventually("those who left are gone", || ground.engine.open() == open.len());
        while open.len() < MOST {
            let stream = enter(&ground, open.len());
            goes_on(&stream, b"is anybody there?").unwrap();
            open.push(stream);
        }
        for _ in 0..5 {
            let refused = ground.connect(0).unwrap();
            let error = goes_on(&refused, b"me too").unwrap_err();
            let is_reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
            assert!(is_reset, "round {round}: {error}");
            assert_eq!(ground.engine.open(), MOST);
        }
        for (number, stream) in open.iter().enumerate() {
            goes_on(stream, format!("round {round}, connection {number}").repeat(500).as_bytes()).unwrap();
        }
    }
    drop(open);
    ground.leave();
}
