//! A client that does not read blocks its own server, but no other connection, and the engine buffers at most one pipe
//! for it.

use crate::fixture::{Fixture, eventually};
use crate::results::Results;
use crate::script::{Role, Script};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const SEED: u64 = 0x510;
/// Clients that read.
const OTHERS: u64 = 50;
/// Bytes that the engine may buffer for one direction: the size of a pipe.
const MAX_WAITING: usize = 512 * 1024;

/// The first byte of the slow client; other clients begin with a seed, whose first byte is zero.
const SLOW: &[u8; 1] = b"!";

/// The server that writes to the slow client without end.
#[derive(Debug, Default)]
struct Flood {
    written: AtomicUsize,
    saw_end: AtomicBool,
}

impl Flood {
    /// Writes until the connection ends.
    fn serve(&self, mut stream: TcpStream) {
        while let Ok(bytes) = stream.write(&[0xAA; 64 * 1024]) {
            self.written.fetch_add(bytes, Relaxed);
        }
        self.saw_end.store(true, Relaxed);
    }

    /// Waits until the server cannot write: no byte for longer than a busy machine pauses. Returns the bytes written so
    /// far.
    fn wait_until_stuck(&self) -> usize {
        let mut before = 0;
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(500));
            let now = self.written.load(Relaxed);
            if now == before && now > 0 {
                return now;
            }
            before = now;
        }
        panic!("{before} bytes were written by the server, and it can still write");
    }
}

fn is_slow(stream: &TcpStream) -> bool {
    let mut first = [0];
    stream.peek(&mut first).is_ok() && first == *SLOW
}

pub(crate) fn a_client_that_does_not_read_delays_no_other_connection_and_its_buffer_is_bounded() {
    let (results, flood) = (Arc::new(Results::default()), Arc::new(Flood::default()));
    let fixture = Fixture::new(None, 4, 16, {
        let (results, flood) = (results.clone(), flood.clone());
        move |stream| match stream.peek(&mut [0]) {
            Ok(1) if is_slow(&stream) => flood.serve(stream),
            Ok(_) => results.serve(stream),
            Err(_) => results.count_unidentified(),
        }
    });
    // Connected before the slow client, so that some of these clients share its thread.
    let others: Vec<TcpStream> =
        (0..OTHERS).map(|client| fixture.connect(client as usize).unwrap()).collect();
    eventually("all other clients are connected", || fixture.engine.open() == others.len());
    let mut slow = fixture.connect(0).unwrap();
    slow.write_all(SLOW).unwrap();
    flood.wait_until_stuck();

    std::thread::scope(|scope| {
        for (number, stream) in (0..).zip(others) {
            let results = &results;
            scope.spawn(move || results.run_peer(stream, Role::Client, Script::draw(SEED, number)));
        }
    });
    results.check(SEED);
    eventually("only the slow client is connected", || fixture.engine.open() == 1);
    let guaranteed = (0..OTHERS).map(|number| Script::draw(SEED, number).guaranteed_checks()).sum::<u64>();
    eventually("all other clients have checked their bytes", || results.checked() >= guaranteed);
    let stuck_at = flood.wait_until_stuck();
    let waiting = fixture.engine.waiting();
    println!("{stuck_at} bytes were written by the server, {waiting} of them are in the engine's pipes");
    assert!((1..=MAX_WAITING).contains(&waiting), "{waiting} bytes are buffered for one connection");

    // When the client reads, all bytes arrive, and when it closes, the server sees the end.
    let mut buffer = vec![0; 1 << 20];
    slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut received = 0;
    while received < stuck_at {
        let bytes = slow.read(&mut buffer).unwrap();
        assert!(bytes > 0 && buffer[..bytes].iter().all(|byte| *byte == 0xAA), "after {received}");
        received += bytes;
    }
    drop(slow);
    eventually("the server sees the end", || flood.saw_end.load(Relaxed));
    fixture.shut_down();
}
