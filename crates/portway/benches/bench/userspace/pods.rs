//! What the pods serve: as many bytes as one takes, a short answer to a short question, an echo of datagrams. (The port
//! for connections that stay idle is served by the lab's own server.)
//!
//! Threads that wait, with as little work of their own as there can be: they share the cores with what is measured.

use portway_lab::LabHost;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Sends until the client leaves.
pub(super) const BULK: u16 = 9001;
/// Answers once and closes.
pub(super) const SMALL: u16 = 9002;
/// Greets and waits.
pub(super) const IDLE: u16 = 9003;
/// Sends datagrams back.
pub(super) const ECHO: u16 = 9004;

/// What is sent in one go.
const CHUNK: usize = 256 * 1024;
/// Threads of a pod that answer short questions: one waits for a question while others answer.
const ANSWERING: usize = 4;
/// How often threads look whether to stop; also the longest that a client may keep them waiting.
const TICK: Duration = Duration::from_secs(1);

/// Running servers; they end when dropped.
pub(super) struct Pods {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pods {
    pub(super) fn start(places: &[LabHost]) -> io::Result<Pods> {
        let mut pods = Pods { stop: Arc::default(), threads: Vec::new() };
        for place in places {
            let (bulk, small, echo) = place.namespace().run(|| -> io::Result<_> {
                Ok((listen(BULK)?, listen(SMALL)?, UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ECHO))?))
            })?;
            echo.set_read_timeout(Some(TICK))?;
            pods.spawn(move |stop| serve_bulk(&bulk, stop));
            for _ in 0..ANSWERING {
                let small = small.try_clone()?;
                pods.spawn(move |stop| serve_small(&small, stop));
            }
            pods.spawn(move |stop| serve_echo(&echo, stop));
        }
        Ok(pods)
    }

    fn spawn(&mut self, work: impl FnOnce(&AtomicBool) + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || work(&stop)));
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// A listener that does not wait for clients for ever; connections inherit that.
fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    set_socket_timeout(&listener, Timeout::Recv, Some(TICK))?;
    Ok(listener)
}

/// Connections until told to stop.
fn accepted(listener: &TcpListener, stop: &AtomicBool) -> impl Iterator<Item = TcpStream> {
    let next = || (!stop.load(Ordering::Relaxed)).then(|| listener.accept());
    // Errors are timeouts, and clients that were gone before we came.
    std::iter::from_fn(next).flatten().map(|(stream, _)| stream)
}

fn serve_bulk(listener: &TcpListener, stop: &AtomicBool) {
    let chunk = vec![0x5a; CHUNK];
    thread::scope(|scope| {
        for mut stream in accepted(listener, stop) {
            let chunk = &chunk;
            scope.spawn(move || {
                // Ends with the client, or if nobody takes anything any more.
                stream.set_write_timeout(Some(TICK)).ok();
                while stream.write(chunk).is_ok() {}
            });
        }
    });
}

fn serve_small(listener: &TcpListener, stop: &AtomicBool) {
    let mut question = [0; 256];
    for mut stream in accepted(listener, stop) {
        // A client that gives up will say so itself.
        if stream.read(&mut question).is_ok_and(|n| n > 0) {
            stream.write_all(b"answer\n").ok();
        }
    }
}

fn serve_echo(socket: &UdpSocket, stop: &AtomicBool) {
    let mut datagram = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut datagram) {
            socket.send_to(&datagram[..length], from).ok();
        }
    }
}
