//! The fixture of all tests: an engine, a Service whose frontend is a listener of the engine, and the Service's
//! endpoints.
//!
//! There are no rules: clients dial the listener directly, so everything happens on a loopback interface.

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

/// The number of open file descriptors.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until a condition holds.
pub(crate) fn eventually(condition: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(30), "not within 30 seconds: {condition}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The engine, and the endpoints of its only Service.
pub(crate) struct Fixture {
    pub(crate) engine: Arc<Engine>,
    /// The listener that clients dial.
    pub(crate) listener: SocketAddr,
    listeners: Vec<Arc<TcpListener>>,
    servers: Vec<JoinHandle<()>>,
    before: usize,
}

impl Fixture {
    /// Starts an engine with this number of descriptors, or with the limit of the process, and endpoints, each with
    /// this number of threads that serve one connection after the other.
    pub(crate) fn new(
        descriptors_of_engine: Option<u64>,
        endpoints: u8,
        threads: usize,
        serve: impl Fn(TcpStream) + Clone + Send + 'static,
    ) -> Fixture {
        let before = descriptors();
        let engine = match descriptors_of_engine {
            Some(descriptors) => Engine::start_with(descriptors).unwrap(),
            None => Engine::start().unwrap(),
        };
        let (mut listeners, mut servers) = (Vec::new(), Vec::new());
        for number in 1..=endpoints {
            // Each endpoint has its own address, so that there are enough local ports for connections to it.
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
        let listener = open_listeners(&engine, targets.collect());
        Fixture { engine, listener, listeners, servers, before }
    }

    /// Connects to the listener as the client with this number.
    pub(crate) fn connect(&self, client: usize) -> io::Result<TcpStream> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Clients have several addresses, because ports of closed connections stay in TIME_WAIT for a minute.
        let source = Ipv4Addr::new(127, 0, 1, (client % 32) as u8 + 1);
        bind(&socket, &SocketAddr::from((source, 0)))?;
        connect(&socket, &self.listener)?;
        Ok(TcpStream::from(socket))
    }

    /// Stops everything, and checks that no connection, byte or descriptor is left.
    pub(crate) fn shut_down(self) {
        eventually("all connections have ended", || self.engine.open() == 0);
        assert_eq!(self.engine.waiting(), 0, "bytes are left in pipes");
        self.engine.stop(Some(Duration::ZERO), Duration::ZERO);
        self.engine.wait();
        drop(self.engine);
        for listener in &self.listeners {
            // Wakes the threads in accept().
            shutdown(&**listener, rustix::net::Shutdown::Both).unwrap();
        }
        drop(self.listeners);
        for server in self.servers {
            server.join().unwrap();
        }
        let before = self.before;
        // The threads of the engine count as ended a moment before their descriptors are closed.
        eventually("descriptors are closed", || descriptors() <= before);
    }
}

/// Opens the engine's listeners, and makes the one for TCP the frontend of a Service with these endpoints.
fn open_listeners(engine: &Engine, endpoints: Box<[Target]>) -> SocketAddr {
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    engine.configure(&UserspaceSettings { addresses: vec![ip], ..UserspaceSettings::default() });
    let ports = engine.open_listeners(Family::V4, &[ip], None).unwrap().unwrap();
    let name = ServiceName::new("default", "bytes");
    let port = PortPlan {
        name: "".into(),
        protocol: Protocol::Tcp,
        frontends: [Frontend { kind: FrontendKind::ClusterIp, address: Some(ip), port: ports.tcp[0] }].into(),
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
    engine.commit_routes(Family::V4);
    SocketAddr::new(ip, ports.tcp[0])
}
