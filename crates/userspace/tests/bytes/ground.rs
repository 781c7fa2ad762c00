//! The ground that tests stand on: an engine, a Service whose frontend is its door, and the Service's endpoints.
//!
//! No rule leads anybody to the door: clients go there by themselves, so all of it happens on a loopback interface.

use portway_dataplane::UserspaceSettings;
use portway_model::{
    Family, Frontend, FrontendKind, PortPlan, Protocol, ServiceName, ServicePlan, Target, TrafficPolicy,
};
use portway_userspace::Engine;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, shutdown, socket_with};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// File descriptors that are open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "not within 30 seconds: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The engine, and the endpoints of the one Service it has.
pub(crate) struct Ground {
    pub(crate) engine: Arc<Engine>,
    /// Where clients go.
    pub(crate) door: SocketAddr,
    listeners: Vec<Arc<TcpListener>>,
    servers: Vec<JoinHandle<()>>,
    before: usize,
}

impl Ground {
    /// An engine that counts on so many descriptors, or on those there are; so many endpoints, each with so many threads that
    /// serve one connection after the other.
    pub(crate) fn new(
        descriptors_for_it: Option<u64>,
        endpoints: u8,
        threads: usize,
        serve: impl Fn(TcpStream) + Clone + Send + 'static,
    ) -> Ground {
        let before = descriptors();
        let engine = match descriptors_for_it {
            Some(descriptors) => Engine::start_with(descriptors).unwrap(),
            None => Engine::start().unwrap(),
        };
        let (mut listeners, mut servers) = (Vec::new(), Vec::new());
        for number in 1..=endpoints {
            // Addresses of their own, so that there are ports enough for connections to each.
            let listener = Arc::new(TcpListener::bind((Ipv4Addr::new(127, 0, 2, number), 0)).unwrap());
            for _ in 0..threads {
                let (listener, serve) = (listener.clone(), serve.clone());
                servers.push(std::thread::spawn(move || {
                    while let Ok((stream, _)) = listener.accept() {
                        serve(stream);
                    }
                }));
            }
            listeners.push(listener);
        }
        let targets = listeners.iter().map(|listener| {
            let address = listener.local_addr().unwrap();
            Target { ip: address.ip(), port: address.port() }
        });
        let door = open_door(&engine, targets.collect());
        Ground { engine, door, listeners, servers, before }
    }

    /// A connection to the door, for a client of some number.
    pub(crate) fn connect(&self, client: usize) -> io::Result<TcpStream> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Clients at several addresses have ports enough, though those of closed connections are not free for a minute.
        let source = Ipv4Addr::new(127, 0, 1, (client % 32) as u8 + 1);
        bind(&socket, &SocketAddr::from((source, 0)))?;
        connect(&socket, &self.door)?;
        Ok(TcpStream::from(socket))
    }

    /// Everybody leaves, and nothing stays: no connection, no byte, no descriptor.
    pub(crate) fn leave(self) {
        eventually("all connections have ended", || self.engine.open() == 0);
        assert_eq!(self.engine.waiting(), 0, "bytes wait for nobody");
        self.engine.stop(Some(Duration::ZERO), Duration::ZERO);
        self.engine.wait();
        drop(self.engine);
        for listener in &self.listeners {
            // Wakes those who wait for somebody to accept.
            shutdown(&**listener, rustix::net::Shutdown::Both).unwrap();
        }
        drop(self.listeners);
        for server in self.servers {
            server.join().unwrap();
        }
        let before = self.before;
        // The threads of the engine have done their work, but close what they had a moment later.
        eventually("descriptors are closed", || descriptors() <= before);
    }
}

/// Opens the engine's doors, and gives the one for TCP to a Service with these endpoints.
fn open_door(engine: &Engine, endpoints: Box<[Target]>) -> SocketAddr {
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    engine.configure(&UserspaceSettings { addresses: vec![ip], ..UserspaceSettings::default() });
    let doors = engine.doors(Family::V4, &[ip], None).unwrap().unwrap();
    let name = ServiceName::new("default", "bytes");
    let port = PortPlan {
        name: "".into(),
        protocol: Protocol::Tcp,
        frontends: [Frontend { kind: FrontendKind::ClusterIp, address: Some(ip), port: doors.tcp[0] }].into(),
        cluster: endpoints,
        local: [].into(),
        also_serving: [].into(),
        here: [].into(),
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Cluster,
        affinity: None,
        source_ranges: [].into(),
        admits_node: false,
    };
    let plan = ServicePlan {
        name: name.clone(),
        family: Family::V4,
        ports: [port].into(),
        health_check: None,
        scheduler: None,
        proxy_protocol: None,
    };
    engine.change(&name, Family::V4, Some(&plan));
    engine.settle(Family::V4);
    SocketAddr::new(ip, doors.tcp[0])
}
