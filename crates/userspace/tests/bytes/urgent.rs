//! What is said urgently (`MSG_OOB`) is a byte like others to the engine: it arrives in its place, and nothing after it
//! waits or is lost.

use crate::ground::Ground;
use rustix::net::{SendFlags, send};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const SAID: &[u8] = b"before!after!and more";

/// Says it, urgent where there is an exclamation mark.
fn say(mut stream: &TcpStream) {
    for piece in SAID.split_inclusive(|byte| *byte == b'!') {
        let (last, others) = piece.split_last().unwrap();
        stream.write_all(others).unwrap();
        send(stream, &[*last], if *last == b'!' { SendFlags::OOB } else { SendFlags::empty() }).unwrap();
    }
}

fn hear(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut heard = vec![0; SAID.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, SAID, "{:?}", String::from_utf8_lossy(&heard));
}

fn hear_end(mut stream: &TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// Whether all arrives from both sides, if the client ends its direction at once, or only when it has got its answer.
fn arrives(ends_at_once: bool) {
    let ground = Ground::new(None, 2, 2, |stream| {
        hear(&stream);
        say(&stream);
        hear_end(&stream);
    });
    for client in 0..100 {
        let stream = ground.connect(client).unwrap();
        say(&stream);
        if ends_at_once {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        hear(&stream);
        if !ends_at_once {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        hear_end(&stream);
    }
    ground.leave();
}

pub(crate) fn urgent_bytes_keep_nothing_from_arriving() {
    arrives(false);
}

pub(crate) fn urgent_bytes_are_no_end_before_the_end() {
    arrives(true);
}
