//! Somebody who does not read is waited for, but nobody else is, and not much is held for them.

use crate::crowd::Findings;
use crate::ground::{Ground, eventually};
use crate::script::{Role, Script};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

const SEED: u64 = 0x510;
/// Those who do read.
const OTHERS: u64 = 50;
/// What the engine takes for one direction before the other side has to take some of it: a pipe.
const HELD: usize = 512 * 1024;

/// How the slow one begins; the others begin with a seed, whose first byte is zero.
const SLOW: &[u8; 1] = b"!";

/// The server that floods the slow one.
#[derive(Debug, Default)]
struct Flood {
    written: AtomicUsize,
    is_told: AtomicBool,
}

impl Flood {
    /// As long as the other side takes it.
    fn serve(&self, mut stream: TcpStream) {
        while let Ok(bytes) = stream.write(&[0xAA; 64 * 1024]) {
            self.written.fetch_add(bytes, Relaxed);
        }
        self.is_told.store(true, Relaxed);
    }

    /// Waits until it has to wait for the client: nothing is written for longer than a busy machine pauses. So much was
    /// written then.
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
        panic!("{before} bytes were taken from the server, and there is no end to it");
    }
}

fn is_slow(stream: &TcpStream) -> bool {
    let mut first = [0];
    stream.peek(&mut first).is_ok() && first == *SLOW
}

pub(crate) fn one_who_does_not_read_holds_nobody_up_and_little_is_held_for_them() {
    let (findings, flood) = (Arc::new(Findings::default()), Arc::new(Flood::default()));
    let ground = Ground::new(None, 4, 16, {
        let (findings, flood) = (findings.clone(), flood.clone());
        move |stream| match stream.peek(&mut [0]) {
            Ok(1) if is_slow(&stream) => flood.serve(stream),
            Ok(_) => findings.serve(stream),
            Err(_) => findings.is_unknown(),
        }
    });
    // Before the slow one, so that some of them share its thread.
    let others: Vec<TcpStream> = (0..OTHERS).map(|client| ground.connect(client as usize).unwrap()).collect();
    eventually("the others are there", || ground.engine.open() == others.len());
    let mut slow = ground.connect(0).unwrap();
    slow.write_all(SLOW).unwrap();
    flood.wait_until_stuck();

    std::thread::scope(|scope| {
        for (number, stream) in (0..).zip(others) {
            let findings = &findings;
            scope.spawn(move || findings.play(stream, Role::Client, Script::draw(SEED, number)));
        }
    });
    findings.check(SEED);
    eventually("only the slow one is there", || ground.engine.open() == 1);
    let certain = (0..OTHERS).map(|number| Script::draw(SEED, number).certain()).sum::<u64>();
    eventually("all have judged", || findings.judged() >= certain);
    let stuck_at = flood.wait_until_stuck();
    let waiting = ground.engine.waiting();
    println!("{stuck_at} bytes were taken from the server, {waiting} of them wait in the engine");
    assert!((1..=HELD).contains(&waiting), "{waiting} bytes wait for one connection");

    // It is there in full when the client reads after all, and when it leaves the server is told.
    let mut buffer = vec![0; 1 << 20];
    slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut heard = 0;
    while heard < stuck_at {
        let bytes = slow.read(&mut buffer).unwrap();
        assert!(bytes > 0 && buffer[..bytes].iter().all(|byte| *byte == 0xAA), "after {heard}");
        heard += bytes;
    }
    drop(slow);
    eventually("the server is told", || flood.is_told.load(Relaxed));
    ground.leave();
}
