//! A minimal UDP forwarder for comparison: one thread, a socket to a pod for each client, and two system calls per
//! datagram, one to receive it and one to send it.

use portway_lab::LabHost;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// The interval at which it checks whether to stop.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The epoll key of the socket that clients send to; the key of a session is its index.
const FRONT: u64 = u64::MAX;

/// A running forwarder; it stops when dropped.
pub(super) struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Forwarder {
    /// Starts a forwarder from a port of the node to the same port of pods.
    pub(super) fn start(node: &LabHost, port: u16, pods: &[Ipv4Addr]) -> io::Result<Forwarder> {
        let stop = Arc::new(AtomicBool::new(false));
        let pods = pods.iter().map(|ip| SocketAddr::from((*ip, port))).collect();
        let address = (node.ipv4(), port);
        // A thread inherits the namespace of the thread that starts it, and opens its sockets there.
        let thread = node.namespace().run(|| -> io::Result<_> {
            let mut relay = Relay::open(address, pods)?;
            let stop = Arc::clone(&stop);
            Ok(thread::spawn(move || relay.run(&stop)))
        })?;
        Ok(Forwarder { stop, thread: Some(thread) })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the plain forwarder failed: {error}");
        }
    }
}

/// The state of the thread.
struct Relay {
    front: UdpSocket,
    epoll: OwnedFd,
    pods: Vec<SocketAddr>,
    by_client: HashMap<SocketAddr, usize>,
    sessions: Vec<(UdpSocket, SocketAddr)>,
}

impl Relay {
    fn open(address: (Ipv4Addr, u16), pods: Vec<SocketAddr>) -> io::Result<Relay> {
        let front = UdpSocket::bind(address)?;
        front.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &front, epoll::EventData::new_u64(FRONT), epoll::EventFlags::IN)?;
        Ok(Relay { front, epoll, pods, by_client: HashMap::new(), sessions: Vec::new() })
    }

    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !stop.load(Ordering::Relaxed) {
            epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&TICK))?;
            for event in events.drain(..) {
                match event.data.u64() {
                    FRONT => self.forward()?,
                    session => self.back(session as usize),
                }
            }
        }
        Ok(())
    }

    fn forward(&mut self) -> io::Result<()> {
        let mut datagram = [0; 2048];
        while let Ok((length, client)) = self.front.recv_from(&mut datagram) {
            let session = match self.by_client.get(&client) {
                Some(session) => *session,
                None => self.add(client)?,
            };
            // A datagram that cannot be sent is dropped.
            self.sessions[session].0.send(&datagram[..length]).ok();
        }
        Ok(())
    }

    fn back(&self, session: usize) {
        let (socket, client) = &self.sessions[session];
        let mut datagram = [0; 2048];
        while let Ok(length) = socket.recv(&mut datagram) {
            self.front.send_to(&datagram[..length], client).ok();
        }
    }

    fn add(&mut self, client: SocketAddr) -> io::Result<usize> {
        let session = self.sessions.len();
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(self.pods[session % self.pods.len()])?;
        socket.set_nonblocking(true)?;
        let key = epoll::EventData::new_u64(session as u64);
        epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN)?;
        self.sessions.push((socket, client));
        self.by_client.insert(client, session);
        Ok(session)
    }
}
