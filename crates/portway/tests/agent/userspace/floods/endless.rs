//! A server in a pod that sends without end on every connection.

use portway_lab::Namespace;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::OwnedFd;
use rustix::net::listen;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

/// The bytes of one write.
static CHUNK: [u8; 64 << 10] = [b'x'; 64 << 10];
/// The length of the accept queue.
const BACKLOG: i32 = 4096;
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// A running server; it stops when dropped.
#[derive(Debug)]
pub(super) struct EndlessServer {
    /// Bytes written to sockets.
    sent: Arc<AtomicU64>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl EndlessServer {
    /// Starts the server at a port of a pod.
    pub(super) fn start(pod: &Namespace, port: u16) -> io::Result<EndlessServer> {
        let listener = pod.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        // The standard library's accept queue is shorter.
        listen(&listener, BACKLOG)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let sent = Arc::<AtomicU64>::default();
        let (counter, stopped) = (sent.clone(), stop.clone());
        let thread = thread::spawn(move || serve(&listener, &counter, &stopped));
        Ok(EndlessServer { sent, stop, thread: Some(thread) })
    }

    /// The number of bytes written to sockets.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Drop for EndlessServer {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn serve(listener: &TcpListener, sent: &AtomicU64, stop: &OwnedFd) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
    let mut clients: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            match event.data.u64() {
                STOP => return Ok(()),
                LISTENER => {
                    while let Ok((client, _)) = listener.accept() {
                        client.set_nonblocking(true)?;
                        let data = epoll::EventData::new_u64(clients.len() as u64);
                        epoll::add(&epoll, &client, data, epoll::EventFlags::OUT)?;
                        clients.push(Some(client));
                    }
                }
                slot => {
                    let Some(client) = &mut clients[slot as usize] else { continue };
                    match client.write(&CHUNK) {
                        Ok(bytes) => _ = sent.fetch_add(bytes as u64, Relaxed),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(_) => clients[slot as usize] = None,
                    }
                }
            }
        }
    }
}
