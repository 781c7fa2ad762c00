//! The setup of the measurements: a node with five pods, one client and four servers, Portway's agent and HAProxy.

use super::haproxy::HaProxy;
use super::pods::{BULK, ECHO, IDLE, Pods, SMALL};
use crate::Options;
use crate::field::{Field, Mode, Setup, meta};
use portway_lab::{Agent, LabHost, Namespace, Port, eventually};
use portway_model::api::{self, Object};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Pods that answer.
const PODS: usize = 4;
/// Open files besides connections, in any of the processes; a generous bound.
const OTHER_FILES: u64 = 400;
const PATIENCE: Duration = Duration::from_secs(30);

/// One of the two proxies, as a client sees it.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    /// Its address; ports are those of the pods.
    pub(super) ip: IpAddr,
    pub(super) pid: u32,
}

impl Contender {
    pub(super) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }
}

/// Everything that runs.
pub(super) struct Stage {
    // Dropped in this order: proxies before the pods behind them, those before their namespaces.
    pub(super) agent: Agent,
    /// The relay process of the agent.
    relay: u32,
    pub(super) haproxy: HaProxy,
    _pods: Pods,
    field: Field,
    /// How many connections are open at once, at most.
    pub(super) connections: usize,
}

impl Stage {
    pub(super) fn build(options: &Options) -> Result<Stage, String> {
        let mut field = Field::new(Setup { mode: Mode::Userspace, ..Setup::new(PODS) })?;
        for _ in 1..PODS {
            field.lab.add_pod(1).map_err(|e| e.to_string())?;
        }
        let answering = &field.lab.pods()[1..];
        for pod in answering {
            pod.serve(&[Port::Tcp(IDLE)]).map_err(|e| e.to_string())?;
        }
        let pods = Pods::start(answering).map_err(|e| format!("serving in pods: {e}"))?;
        let ips: Vec<Ipv4Addr> = answering.iter().map(LabHost::ipv4).collect();
        for object in [service(field.vip(0).ip()), slice(&ips)] {
            field.api.apply(object);
        }
        let connections = options.idle_connections.min(room());
        let haproxy = HaProxy::start(field.lab.node(1), &ips, connections)?;
        let mut agent = field.start_agent()?;
        let relay = relay(&mut agent)?;
        let stage = Stage { agent, relay, haproxy, _pods: pods, field, connections };
        stage.await_both()?;
        Ok(stage)
    }

    /// Where clients are.
    pub(super) fn client(&self) -> &Namespace {
        self.field.lab.pod("pod1a").namespace()
    }

    pub(super) fn node(&self) -> &LabHost {
        self.field.lab.node(1)
    }

    /// The pods that answer.
    pub(super) fn pods(&self) -> Vec<Ipv4Addr> {
        self.field.lab.pods()[1..].iter().map(LabHost::ipv4).collect()
    }

    pub(super) fn portway(&self) -> Contender {
        Contender { name: "Portway", ip: self.field.vip(0).ip(), pid: self.relay }
    }

    pub(super) fn haproxy(&self) -> Contender {
        Contender { name: "HAProxy", ip: self.node().ipv4().into(), pid: self.haproxy.id() }
    }

    fn await_both(&self) -> Result<(), String> {
        for (side, log) in [(self.portway(), self.agent.log()), (self.haproxy(), self.haproxy.log())] {
            let connect = || TcpStream::connect_timeout(&side.at(IDLE), Duration::from_millis(50)).map(drop);
            let reached = self.client().run(|| eventually(PATIENCE, connect));
            reached.map_err(|e| format!("{} does not answer: {e}\n{log}", side.name))?;
        }
        Ok(())
    }
}

/// The relay process, as the agent logs it.
fn relay(agent: &mut Agent) -> Result<u32, String> {
    let line = agent.wait_for("started the relay process", PATIENCE);
    let line = line.map_err(|e| e.to_string())?;
    let number = line.split("process=").nth(1).and_then(|rest| rest.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).ok_or_else(|| format!("no process in {line:?}"))
}

/// How many connections this machine lets a process have. A proxy has both sockets of each open, and so has this process,
/// which is client and pods at once.
fn room() -> usize {
    // As many as the process may have.
    let more = Some(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: more, maximum: more }).ok();
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files.saturating_sub(OTHER_FILES) / 2).unwrap_or(usize::MAX)
}

/// Names, protocols and numbers of the ports; the Service's are the pods'.
const PORTS: [(&str, &str, u16); 4] =
    [("bulk", "TCP", BULK), ("small", "TCP", SMALL), ("idle", "TCP", IDLE), ("echo", "UDP", ECHO)];

fn service(ip: IpAddr) -> Object {
    let port = |(name, protocol, number): (&str, &str, u16)| api::ServicePort {
        name: name.into(),
        protocol: protocol.into(),
        port: number.into(),
        node_port: 0,
    };
    Object::Service(api::Service {
        metadata: Some(meta("beside-haproxy", HashMap::new())),
        spec: Some(api::ServiceSpec {
            cluster_ip: ip.to_string(),
            cluster_ips: vec![ip.to_string()],
            ip_families: vec!["IPv4".into()],
            kind: "ClusterIP".into(),
            ports: PORTS.map(port).into(),
            session_affinity: "None".into(),
            internal_traffic_policy: Some("Cluster".into()),
            ..Default::default()
        }),
        status: None,
    })
}

fn slice(pods: &[Ipv4Addr]) -> Object {
    let port = |(name, protocol, number): (&str, &str, u16)| api::EndpointPort {
        name: Some(name.into()),
        protocol: Some(protocol.into()),
        port: Some(number.into()),
    };
    let endpoint = |ip: &Ipv4Addr| api::Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(api::EndpointConditions { ready: Some(true), ..Default::default() }),
        node_name: Some("node1".into()),
        hints: None,
    };
    let labels = HashMap::from([("kubernetes.io/service-name".to_owned(), "beside-haproxy".to_owned())]);
    Object::EndpointSlice(api::EndpointSlice {
        metadata: Some(meta("beside-haproxy-x7k2p", labels)),
        address_type: "IPv4".into(),
        ports: PORTS.map(port).into(),
        endpoints: pods.iter().map(endpoint).collect(),
    })
}
