//! The servers in the pods: bytes without end, a short answer to a short request, an echo of datagrams. The lab's own
//! server serves the port for idle connections.
//!
//! They are blocking threads with little work, since they share the cores with the measured proxies.

use portway_lab::LabHost;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Sends until the client closes the connection.
pub(super) const BULK: u16 = 9001;
/// Answers once and closes.
pub(super) const SMALL: u16 = 9002;
/// Sends a greeting and waits.
pub(super) const IDLE: u16 = 9003;
/// Sends datagrams back.
pub(super) const ECHO: u16 = 9004;

/// The bytes of one write.
const CHUNK: usize = 256 * 1024;
/// Threads of a pod for short requests: one can wait for a request while others answer.
const ANSWER_THREADS: usize = 4;
/// The interval at which threads check whether to stop, and the time limit for a client.
const TICK: Duration = Duration::from_secs(1);

/// Running servers; they stop when dropped.
pub(super) struct Pods {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pods {
    pub(super) fn start(hosts: &[LabHost]) -> io::Result<Pods> {
        let mut pods = Pods { stop: Arc::default(), threads: Vec::new() };
        for host in hosts {
            let (bulk, small, echo) = host.namespace().run(|| -> io::Result<_> {
                Ok((listen(BULK)?, listen(SMALL)?, UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ECHO))?))
            })?;
            echo.set_read_timeout(Some(TICK))?;
            pods.spawn(move |stop| serve_bulk(&bulk, stop));
            for _ in 0..ANSWER_THREADS {
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

/// A listener with a receive timeout, which accepted connections inherit.
fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    set_socket_timeout(&listener, Timeout::Recv, Some(TICK))?;
    Ok(listener)
}

/// Accepts connections until `stop` is set.
fn accepted(listener: &TcpListener, stop: &AtomicBool) -> impl Iterator<Item = TcpStream> {
    let next = || (!stop.load(Ordering::Relaxed)).then(|| listener.accept());
    // Errors are timeouts, and clients that closed before they were accepted.
    std::iter::from_fn(next).flatten().map(|(stream, _)| stream)
}

fn serve_bulk(listener: &TcpListener, stop: &AtomicBool) {
    let chunk = vec![0x5a; CHUNK];
    thread::scope(|scope| {
        for mut stream in accepted(listener, stop) {
            let chunk = &chunk;
            scope.spawn(move || {
                // Ends when the client closes the connection or stops reading.
                stream.set_write_timeout(Some(TICK)).ok();
                while stream.write(chunk).is_ok() {}
            });
        }
    });
}

fn serve_small(listener: &TcpListener, stop: &AtomicBool) {
    let mut question = [0; 256];
    for mut stream in accepted(listener, stop) {
        // A client that fails reports its error itself.
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
