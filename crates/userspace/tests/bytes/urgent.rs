//! The engine receives urgent data (`MSG_OOB`) in line: it arrives in order, and no byte after it is delayed or lost.

use crate::fixture::Fixture;
use rustix::net::{SendFlags, send};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const SENT: &[u8] = b"before!after!and more";

/// Sends [`SENT`], with exclamation marks as urgent data.
fn send_urgent(mut stream: &TcpStream) {
    for piece in SENT.split_inclusive(|byte| *byte == b'!') {
        let (last, rest) = piece.split_last().unwrap();
        stream.write_all(rest).unwrap();
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

/// All bytes arrive on both sides, whether the client ends its direction at once or only after the answer.
fn check(ends_at_once: bool) {
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

pub(crate) fn bytes_after_urgent_data_arrive() {
    check(false);
}

pub(crate) fn urgent_data_is_not_taken_for_the_end_of_the_stream() {
    check(true);
}
