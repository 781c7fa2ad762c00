//! Many clients and servers that follow their scripts, and the results of their checks.

use crate::fixture::Fixture;
use crate::script::{Role, Script};
use crate::transfer::{End, Transfer, read_header};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The results so far.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Directions whose receiver compared all bytes with those sent.
    checked: AtomicU64,
    /// Directions that were complete, with an orderly end.
    complete: AtomicU64,
    /// Peers that saw a reset.
    resets: AtomicU64,
    /// Connections that were reset before their server had received the header with their number.
    unidentified: AtomicU64,
    /// The number of bytes that the checked scripts send.
    bytes: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Results {
    pub(crate) fn checked(&self) -> u64 {
        self.checked.load(Relaxed)
    }

    pub(crate) fn unidentified(&self) -> u64 {
        self.unidentified.load(Relaxed)
    }

    /// Runs one side of a connection, and records the result.
    pub(crate) fn run_peer(&self, stream: TcpStream, role: Role, script: Script) {
        let expected = match script.reset {
            None => End::Orderly,
            Some(reset) if reset.by == role => End::ResetByThisSide,
            Some(_) => End::ResetByOtherSide,
        };
        match Transfer::new(stream, role, script).run() {
            Ok(end) if end == expected => {
                self.checked.fetch_add(1, Relaxed);
                self.complete.fetch_add((end == End::Orderly).into(), Relaxed);
                self.resets.fetch_add((end == End::ResetByOtherSide).into(), Relaxed);
                self.bytes.fetch_add(script.received_by(role).length as u64, Relaxed);
            }
            Ok(end) => self.fail(format!("{role:?}: {end:?} instead of {expected:?}\n{script:?}")),
            Err(failure) => self.fail(failure),
        }
    }

    /// Runs the server's side.
    pub(crate) fn serve(&self, mut stream: TcpStream) {
        match read_header(&mut stream) {
            Ok(Some(script)) => self.run_peer(stream, Role::Server, script),
            Ok(None) => self.count_unidentified(),
            Err(failure) => self.fail(format!("Server: {failure}")),
        }
    }

    /// Counts a connection that was reset before its header arrived.
    pub(crate) fn count_unidentified(&self) {
        self.unidentified.fetch_add(1, Relaxed);
    }

    pub(crate) fn fail(&self, failure: String) {
        self.failures.lock().unwrap().push(failure);
    }

    pub(crate) fn has_no_failures(&self) -> bool {
        self.failures.lock().unwrap().is_empty()
    }

    /// Fails if a check failed.
    pub(crate) fn check(&self, seed: u64) {
        let failures = self.failures.lock().unwrap();
        assert!(
            failures.is_empty(),
            "{} checks failed; PORTWAY_BYTES={seed}/NUMBER repeats one connection. The first failures:\n{}",
            failures.len(),
            failures[..failures.len().min(5)].join("\n")
        );
    }
}

/// A fixture whose servers follow scripts.
pub(crate) fn fixture(descriptors: Option<u64>, endpoints: u8, threads: usize) -> (Fixture, Arc<Results>) {
    let results = Arc::new(Results::default());
    let shared = results.clone();
    (Fixture::new(descriptors, endpoints, threads, move |stream| shared.serve(stream)), results)
}

/// Runs the scripts of a seed with these numbers, on this number of clients.
pub(crate) fn run_all(
    fixture: &Fixture,
    results: &Results,
    seed: u64,
    numbers: std::ops::Range<u64>,
    clients: usize,
) {
    let next = AtomicU64::new(numbers.start);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (next, end) = (&next, numbers.end);
            scope.spawn(move || {
                while results.has_no_failures() {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= end {
                        return;
                    }
                    match fixture.connect(client) {
                        Ok(stream) => results.run_peer(stream, Role::Client, Script::draw(seed, number)),
                        Err(error) => results.fail(format!("cannot connect: {error}")),
                    }
                }
            });
        }
    });
}
