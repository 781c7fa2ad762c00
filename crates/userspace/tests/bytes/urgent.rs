//! Urgent data (`MSG_OOB`) is in line for the engine: it arrives in its place, and no byte after it is delayed or lost.

use crate::fixture::Fixture;
use rustix::net::{SendFlags, send};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const SENT: &[u8] = b"before!after!and more";

/// Sends it, urgent where there is an exclamation mark.
fn send_urgent(mut stream: &TcpStream) {
    for piece in SENT.split_inclusive(|byte| *byte == b'!') {
        let (last, others) = piece.split_last().unwrap();
        stream.write_all(others).unwrap();
        send(stream, &[*last], if *last == b'!' { SendFlags::OOB } else { SendFlags::empty() }).unwrap();
    }
}

fn receive(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut received = vec![0; SENT.len()];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, SENT, "{:?}", String::from_utf8_lossy(&received));
}

fn receive_end(mut stream: &TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// All bytes arrive on both sides, if the client ends its direction at once, or only after the answer.
fn arrives(ends_at_once: bool) {
    let fixture = Fixture::new(None, 2, 2, |stream| {
        receive(&stream);
        send_urgent(&stream);
        receive_end(&stream);
    });
    for client in 0..100 {
        let stream = fixture.connect(client).unwrap();
        send_urgent(&stream);
        if ends_at_once {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        receive(&stream);
        if !ends_at_once {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        receive_end(&stream);
    }
    fixture.shut_down();
}

pub(crate) fn bytes_behind_urgent_data_arrive() {
    arrives(false);
}

pub(crate) fn urgent_data_does_not_look_like_an_end() {
    arrives(true);
}
