//! A pod that sends without end on every connection.

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
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Stops when dropped.
#[derive(Debug)]
pub(super) struct Endless {
    /// Bytes that the kernel took from it.
    sent: Arc<AtomicU64>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Endless {
    /// Serves at a port of a pod.
    pub(super) fn start(pod: &Namespace, port: u16) -> io::Result<Endless> {
        let listener = pod.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        // A longer queue than the standard library's.
        listen(&listener, BACKLOG)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let sent = Arc::<AtomicU64>::default();
        let (counter, stopped) = (sent.clone(), stop.clone());
        let thread = thread::spawn(move || serve(&listener, &counter, &stopped));
        Ok(Endless { sent, stop, thread: Some(thread) })
    }

    /// Bytes that the kernel took from it.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Drop for Endless {
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
