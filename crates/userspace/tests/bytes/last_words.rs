//! What is said before a connection breaks is heard, and that it broke is known.

use crate::ground::Ground;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// Why the rest of a request is not wanted.
const WORDS: &[u8] = &[b'4'; 2026];

/// As a server that answers 413: it says so, and closes without having read everything, which is a reset.
pub(crate) fn who_refuses_the_rest_of_a_request_is_heard() {
    let ground = Ground::new(None, 2, 2, |mut stream| {
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.write_all(WORDS).unwrap();
    });
    for client in 0..16 {
        let mut stream = ground.connect(client).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // As much as it takes until it is told to stop.
        let request = vec![0; 64 * 1024];
        let refused = (0..400).map(|_| stream.write_all(&request)).find_map(Result::err);
        assert!(refused.is_some(), "25 MB were taken");
        let mut heard = vec![0; WORDS.len()];
        let got = stream.read_exact(&mut heard);
        assert!(got.is_ok() && heard == WORDS, "client {client}: {got:?}");
    }
    ground.leave();
}

/// A transfer that may go on no longer must not look like one that is complete.
pub(crate) fn who_has_to_leave_early_is_told_so() {
    let ground = Ground::new(None, 1, 4, |mut stream| {
        // Until nobody listens.
        while stream.write_all(&[0; 1024]).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut clients: Vec<_> = (0..4).map(|client| ground.connect(client).unwrap()).collect();
    for stream in &mut clients {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.read_exact(&mut [0; 4096]).unwrap();
    }
    ground.engine.stop(Some(Duration::from_millis(100)), Duration::ZERO);
    for mut stream in clients {
        let end = stream.read_to_end(&mut Vec::new());
        assert!(end.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset), "{end:?}");
    }
    ground.leave();
}
