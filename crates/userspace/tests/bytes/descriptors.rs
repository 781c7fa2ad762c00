//! When file descriptors are scarce, bytes are copied where there is no pipe for them, and connections beyond the limit
//! are reset, while open ones continue.

use crate::fixture::{Fixture, eventually};
use crate::results::{Results, fixture};
use crate::script::{Role, Script};
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The maximum number of connections of the engine in these tests. With so few descriptors none are reserved for pipes:
/// when all connections are open there is no pipe.
const MAX_CONNECTIONS: usize = 16;
/// Two for each connection, and the engine's reserve.
const DESCRIPTORS: u64 = 64 + 2 * MAX_CONNECTIONS as u64;
const SEED: u64 = 0x000C_0B1E;

/// Opens a connection besides the `others` that are open. A pipe of another connection may use its descriptors for a
/// moment, so a refused connection is tried again.
fn open_one(fixture: &Fixture, others: usize) -> TcpStream {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(20), "always refused");
        // On a busy machine the reset may arrive before connect() returns, which then returns it.
        let stream = match fixture.connect(others) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => continue,
            connected => connected.unwrap(),
        };
        while stream.take_error().unwrap().is_none() {
            if fixture.engine.open() > others {
                return stream;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "neither accepted nor refused");
            std::thread::yield_now();
        }
    }
}

/// Clients that send nothing, but use descriptors.
struct IdleClients(Vec<TcpStream>);

impl IdleClients {
    fn new(fixture: &Fixture, number: usize) -> IdleClients {
        IdleClients((0..number).map(|others| open_one(fixture, others)).collect())
    }
}

impl Drop for IdleClients {
    fn drop(&mut self) {
        // With a reset: on an orderly end before a script, a server would report a failure.
        self.0.iter().for_each(|stream| sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap());
    }
}

/// Runs some connections at the same time. None sends before all are open and use all descriptors, so each begins
/// without a pipe, and may get one later, when another connection has ended.
fn run_together(fixture: &Fixture, results: &Results, numbers: &[u64]) {
    let idle = MAX_CONNECTIONS - numbers.len();
    let streams: Vec<TcpStream> = (idle..MAX_CONNECTIONS).map(|others| open_one(fixture, others)).collect();
    std::thread::scope(|scope| {
        for (stream, number) in streams.into_iter().zip(numbers) {
            scope.spawn(move || results.run_peer(stream, Role::Client, Script::draw(SEED, *number)));
        }
    });
    // The next connections need the descriptors of these.
    eventually("only the idle clients are connected", || fixture.engine.open() == idle);
}

/// The numbers of connections of all kinds, with more long ones than usual: only long ones fill a socket's buffer.
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
    let (fixture, results) = fixture(Some(DESCRIPTORS), 4, MAX_CONNECTIONS);
    let idle = IdleClients::new(&fixture, MAX_CONNECTIONS - together);
    for numbers in numbers.chunks_exact(together) {
        run_together(&fixture, &results, numbers);
        results.check(SEED);
    }
    drop(idle);
    fixture.shut_down();
    results.check(SEED);
    let run = &numbers[..numbers.len() / together * together];
    let guaranteed: u64 = run.iter().map(|number| Script::draw(SEED, *number).guaranteed_checks()).sum();
    assert!(results.checked() >= guaranteed, "{guaranteed}: {results:?}");
}

pub(crate) fn bytes_are_the_same_without_pipes() {
    bytes_are_the_same(1, &some_of_all_kinds(480, 40));
}

pub(crate) fn bytes_are_the_same_when_pipes_are_scarce() {
    bytes_are_the_same(MAX_CONNECTIONS - 4, &some_of_all_kinds(680, 40));
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..bytes]).is_err() {
            return;
        }
    }
}

/// Sends bytes, and checks that the server sends them back.
fn check_echo(mut stream: &TcpStream, sent: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(sent)?;
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received)?;
    assert_eq!(received, sent);
    Ok(())
}

pub(crate) fn connections_beyond_the_limit_are_reset_and_open_ones_continue() {
    let fixture = Fixture::new(Some(DESCRIPTORS), 2, MAX_CONNECTIONS, echo);
    let mut open: Vec<TcpStream> = Vec::new();
    // In each round some connections are closed, and as many can be opened again.
    for (round, close) in [0, 3, MAX_CONNECTIONS, 1].into_iter().enumerate() {
        open.truncate(open.len() - close.min(open.len()));
        eventually("closed connections have ended", || fixture.engine.open() == open.len());
        while open.len() < MAX_CONNECTIONS {
            let stream = open_one(&fixture, open.len());
            check_echo(&stream, b"request").unwrap();
            open.push(stream);
        }
        for _ in 0..5 {
            let error = fixture.connect(0).and_then(|s| check_echo(&s, b"request")).unwrap_err();
            let is_reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
            assert!(is_reset, "round {round}: {error}");
            assert_eq!(fixture.engine.open(), MAX_CONNECTIONS);
        }
        for (number, stream) in open.iter().enumerate() {
            check_echo(stream, format!("round {round}, connection {number}").repeat(500).as_bytes()).unwrap();
        }
    }
    drop(open);
    fixture.shut_down();
}
