//! Many clients and servers who play their scripts, and what they found.

use crate::ground::Ground;
use crate::script::{Role, Script};
use crate::talk::{End, Talk, listen};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Directions whose receiver compared what it heard with what was said.
    judged: AtomicU64,
    /// Those that were complete, and ended in order.
    complete: AtomicU64,
    /// Ends that were told of a reset.
    resets: AtomicU64,
    /// Connections that were reset before their server knew which one it was.
    unknown: AtomicU64,
    /// All that was to be said.
    bytes: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Findings {
    pub(crate) fn judged(&self) -> u64 {
        self.judged.load(Relaxed)
    }

    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Relaxed)
    }

    /// Plays one end, and writes down how it went.
    pub(crate) fn play(&self, stream: TcpStream, role: Role, script: Script) {
        let expected = match script.reset {
            None => End::Orderly,
            Some(reset) if reset.by == role => End::Resets,
            Some(_) => End::IsReset,
        };
        match Talk::new(stream, role, script).run() {
            Ok(end) if end == expected => {
                self.judged.fetch_add(1, Relaxed);
                self.complete.fetch_add((end == End::Orderly).into(), Relaxed);
                self.resets.fetch_add((end == End::IsReset).into(), Relaxed);
                self.bytes.fetch_add(script.heard_by(role).length as u64, Relaxed);
            }
            Ok(end) => self.is_wrong(format!("{role:?}: {end:?} instead of {expected:?}\n{script:?}")),
            Err(wrong) => self.is_wrong(wrong),
        }
    }

    /// The server's end.
    pub(crate) fn serve(&self, mut stream: TcpStream) {
        match listen(&mut stream) {
            Ok(Some(script)) => self.play(stream, Role::Server, script),
            Ok(None) => self.is_unknown(),
            Err(wrong) => self.is_wrong(format!("Server: {wrong}")),
        }
    }

    /// Somebody was reset before it said who it is.
    pub(crate) fn is_unknown(&self) {
        self.unknown.fetch_add(1, Relaxed);
    }

    pub(crate) fn is_wrong(&self, wrong: String) {
        self.wrong.lock().unwrap().push(wrong);
    }

    pub(crate) fn is_good_so_far(&self) -> bool {
        self.wrong.lock().unwrap().is_empty()
    }

    /// Fails if something was wrong.
    pub(crate) fn check(&self, seed: u64) {
        let wrong = self.wrong.lock().unwrap();
        assert!(
            wrong.is_empty(),
            "{} ends found something wrong; PORTWAY_BYTES={seed}/NUMBER plays one connection again. The first ones:\n{}",
            wrong.len(),
            wrong[..wrong.len().min(5)].join("\n")
        );
    }
}

/// A ground whose servers play scripts.
pub(crate) fn ground(descriptors: Option<u64>, endpoints: u8, threads: usize) -> (Ground, Arc<Findings>) {
    let findings = Arc::new(Findings::default());
    let judges = findings.clone();
    (Ground::new(descriptors, endpoints, threads, move |stream| judges.serve(stream)), findings)
}

/// Has so many clients play the scripts of a seed with these numbers.
pub(crate) fn play_all(
    ground: &Ground,
    findings: &Findings,
    seed: u64,
    numbers: std::ops::Range<u64>,
    clients: usize,
) {
    let next = AtomicU64::new(numbers.start);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (next, end) = (&next, numbers.end);
            scope.spawn(move || {
                while findings.is_good_so_far() {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= end {
                        return;
                    }
                    match ground.connect(client) {
                        Ok(stream) => findings.play(stream, Role::Client, Script::draw(seed, number)),
                        Err(error) => findings.is_wrong(format!("cannot connect: {error}")),
                    }
                }
            });
        }
    });
}
