//! Bytes that were sent before a connection broke arrive, and a broken connection is not taken for a complete one.

use crate::fixture::Fixture;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// The answer of a server that refuses the rest of a request.
const ANSWER: &[u8] = &[b'4'; 2026];

/// The server answers as with HTTP status 413: it sends the answer and closes without reading the whole request, so the
/// kernel sends a reset.
pub(crate) fn bytes_that_a_server_sent_before_a_reset_arrive() {
    let fixture = Fixture::new(None, 2, 2, |mut stream| {
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.write_all(ANSWER).unwrap();
    });
    for client in 0..16 {
        let mut stream = fixture.connect(client).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // Writes until one fails.
        let request = vec![0; 64 * 1024];
        // The socket buffers on the way hold up to 70 MB (tcp_rmem, tcp_wmem) if the server reads late.
        let refused = (0..16 * 1024).map(|_| stream.write_all(&request)).find_map(Result::err);
        assert!(refused.is_some(), "1 GB was accepted");
        let mut received = vec![0; ANSWER.len()];
        let result = stream.read_exact(&mut received);
        assert!(result.is_ok() && received == ANSWER, "client {client}: {result:?}");
    }
    fixture.shut_down();
}

/// Peers of a transfer that is cut off must not see a clean end of the stream.
pub(crate) fn connections_cut_off_at_the_deadline_are_reset() {
    let fixture = Fixture::new(None, 1, 4, |mut stream| {
        // Writes until the connection is reset.
        while stream.write_all(&[0; 1024]).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut clients: Vec<_> = (0..4).map(|client| fixture.connect(client).unwrap()).collect();
    for stream in &mut clients {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.read_exact(&mut [0; 4096]).unwrap();
    }
    fixture.engine.stop(Some(Duration::from_millis(100)), Duration::ZERO);
    for mut stream in clients {
        let end = stream.read_to_end(&mut Vec::new());
        assert!(end.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset), "{end:?}");
    }
    fixture.shut_down();
}
