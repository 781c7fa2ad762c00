//! The testbed: a node with five pods, one of them the client and four with servers, Portway's agent and HAProxy.

use super::haproxy::HaProxy;
use super::pods::{BULK, ECHO, IDLE, Pods, SMALL};
use crate::Options;
use crate::cluster::{Cluster, Mode, Setup, meta};
use portway_lab::{Agent, LabHost, Namespace, Port, eventually};
use portway_model::api::{self, Object};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// The number of pods with servers.
const PODS: usize = 4;
/// An upper bound of the open files of a process besides connections.
const OTHER_FILES: u64 = 400;
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A proxy under measurement.
#[derive(Clone, Debug)]
pub(super) struct MeasuredProxy {
    pub(super) name: &'static str,
    /// The address that clients connect to; its ports are those of the pods.
    pub(super) ip: IpAddr,
    pub(super) pid: u32,
}

impl MeasuredProxy {
    pub(super) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }
}

/// The running processes and their network.
pub(super) struct Testbed {
    // Dropped in this order: proxies, then the servers in the pods, then the namespaces.
    pub(super) agent: Agent,
    /// The process id of the relay.
    relay: u32,
    pub(super) haproxy: HaProxy,
    _pods: Pods,
    cluster: Cluster,
    /// The largest number of connections that are open at once.
    pub(super) connections: usize,
}

impl Testbed {
    pub(super) fn build(options: &Options) -> Result<Testbed, String> {
        let mut cluster = Cluster::new(Setup { mode: Mode::Userspace, ..Setup::new(PODS) })?;
        for _ in 1..PODS {
            cluster.lab.add_pod(1).map_err(|e| e.to_string())?;
        }
        let serving = &cluster.lab.pods()[1..];
        for pod in serving {
            pod.serve(&[Port::Tcp(IDLE)]).map_err(|e| e.to_string())?;
        }
        let pods = Pods::start(serving).map_err(|e| format!("cannot start the servers in pods: {e}"))?;
        let ips: Vec<Ipv4Addr> = serving.iter().map(LabHost::ipv4).collect();
        for object in [service(cluster.vip(0).ip()), slice(&ips)] {
            cluster.api.apply(object);
        }
        let connections = options.idle_connections.min(max_connections());
        let haproxy = HaProxy::start(cluster.lab.node(1), &ips, connections)?;
        let mut agent = cluster.start_agent()?;
        let relay = relay(&mut agent)?;
        let testbed = Testbed { agent, relay, haproxy, _pods: pods, cluster, connections };
        testbed.wait_for_proxies()?;
        Ok(testbed)
    }

    /// The namespace of the clients.
    pub(super) fn client(&self) -> &Namespace {
        self.cluster.lab.pod("pod1a").namespace()
    }

    pub(super) fn node(&self) -> &LabHost {
        self.cluster.lab.node(1)
    }

    /// The addresses of the pods with servers.
    pub(super) fn pods(&self) -> Vec<Ipv4Addr> {
        self.cluster.lab.pods()[1..].iter().map(LabHost::ipv4).collect()
    }

    pub(super) fn portway(&self) -> MeasuredProxy {
        MeasuredProxy { name: "Portway", ip: self.cluster.vip(0).ip(), pid: self.relay }
    }

    pub(super) fn haproxy(&self) -> MeasuredProxy {
        MeasuredProxy { name: "HAProxy", ip: self.node().ipv4().into(), pid: self.haproxy.id() }
    }

    fn wait_for_proxies(&self) -> Result<(), String> {
        for (proxy, log) in [(self.portway(), self.agent.log()), (self.haproxy(), self.haproxy.log())] {
            let connect = || TcpStream::connect_timeout(&proxy.at(IDLE), Duration::from_millis(50)).map(drop);
            let reached = self.client().run(|| eventually(WAIT_TIMEOUT, connect));
            reached.map_err(|e| format!("{} does not answer: {e}\n{log}", proxy.name))?;
        }
        Ok(())
    }
}

/// The process id of the relay, from the agent's log.
fn relay(agent: &mut Agent) -> Result<u32, String> {
    let line = agent.wait_for("started the relay process", WAIT_TIMEOUT);
    let line = line.map_err(|e| e.to_string())?;
    let number = line.split("process=").nth(1).and_then(|rest| rest.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).ok_or_else(|| format!("no process in {line:?}"))
}

/// The number of connections that the limit on open files allows. A proxy has two sockets for each, and so has this
/// process, which has the clients and the pods.
fn max_connections() -> usize {
    // Raise the limit, if that is permitted.
    let raised = Some(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: raised, maximum: raised }).ok();
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files.saturating_sub(OTHER_FILES) / 2).unwrap_or(usize::MAX)
}

/// Names, protocols and numbers of the ports, which are the same for the Service and the pods.
const PORTS: [(&str, &str, u16); 4] =
    [("bulk", "TCP", BULK), ("small", "TCP", SMALL), ("idle", "TCP", IDLE), ("echo", "UDP", ECHO)];

fn service(ip: IpAddr) -> Object {
    let port = |(name, protocol, number): (&str, &str, u16)| api::ServicePort {
        name: name.into(),
        protocol: protocol.into(),
        port: number.into(),
        ..Default::default()
    };
    Object::Service(api::Service {
        metadata: Some(meta("next-to-haproxy", HashMap::new())),
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
    let labels = HashMap::from([("kubernetes.io/service-name".to_owned(), "next-to-haproxy".to_owned())]);
    Object::EndpointSlice(api::EndpointSlice {
        metadata: Some(meta("next-to-haproxy-x7k2p", labels)),
        address_type: "IPv4".into(),
        ports: PORTS.map(port).into(),
        endpoints: pods.iter().map(endpoint).collect(),
    })
}
