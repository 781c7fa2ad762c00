//! The cluster under measurement: a node with pods, and an API server with many Services.

use portway_lab::api::ApiServer;
use portway_lab::{Agent, Lab, Layout, Port};
use portway_model::api::{self, Object};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The port that the existing pod serves.
pub(crate) const PORT: u16 = 8080;

/// A mode to measure, and for iptables its variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    Nftables,
    IptablesNft,
    IptablesLegacy,
    /// Measured separately, in a kernel with ip_vs.
    Ipvs,
    /// Measured separately, against HAProxy.
    #[value(skip)]
    Userspace,
}

impl Mode {
    /// The modes that are compared by the number of Services.
    pub(crate) const COMPARED: [Mode; 3] = [Mode::Nftables, Mode::IptablesNft, Mode::IptablesLegacy];

    /// The name in keys and file names; for iptables also the name of the tool.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::IptablesNft => "iptables-nft",
            Mode::IptablesLegacy => "iptables-legacy",
            Mode::Ipvs => "ipvs",
            Mode::Userspace => "userspace",
        }
    }

    /// The name of the mode in flags and configuration files.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::IptablesNft | Mode::IptablesLegacy => "iptables",
            Mode::Ipvs => "ipvs",
            Mode::Userspace => "userspace",
        }
    }

    /// The iptables tool that the mode uses.
    pub(crate) fn tool(self) -> &'static str {
        if self == Mode::Ipvs { Mode::IptablesLegacy.name() } else { self.name() }
    }
}

/// The parameters of a [`Cluster`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    /// Endpoints of each Service.
    pub(crate) endpoints: usize,
    /// Whether Services have node ports.
    pub(crate) node_ports: bool,
    /// The number of Services before the one with the existing pod: rules are in the order of names.
    pub(crate) position: usize,
}

impl Setup {
    /// Services with cluster IPs only, in the nftables mode.
    pub(crate) fn new(endpoints: usize) -> Setup {
        Setup { mode: Mode::Nftables, endpoints, node_ports: false, position: 0 }
    }
}

/// A node, its pods, and an API server on the node.
pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) api: ApiServer,
    kubeconfig: PathBuf,
    setup: Setup,
}

impl Cluster {
    pub(crate) fn new(setup: Setup) -> Result<Cluster, String> {
        let lab = Layout { nodes: 1, pods_per_node: 2, clients: 0 }.build().map_err(|e| e.to_string())?;
        lab.pod("pod1b").serve(&[Port::Tcp(PORT)]).map_err(|e| e.to_string())?;
        let api = ApiServer::start(lab.node(1), SocketAddr::from(([127, 0, 0, 1], 0)))
            .map_err(|e| e.to_string())?;
        let kubeconfig =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.kubeconfig", std::process::id()));
        std::fs::write(&kubeconfig, api.kubeconfig()).map_err(|e| e.to_string())?;
        let cluster = Cluster { lab, api, kubeconfig, setup };
        cluster.api.apply(node("node1"));
        Ok(cluster)
    }

    /// Adds Services `from..to` to the API server. The endpoint of number 0 is the existing pod.
    pub(crate) fn fill(&self, from: usize, to: usize) {
        for n in from..to {
            self.api.apply(self.service(n));
            self.api.apply(self.slice(n, 0, self.setup.endpoints));
        }
    }

    /// The EndpointSlice of a Service; another `generation` has another first endpoint.
    pub(crate) fn slice(&self, n: usize, generation: usize, endpoints: usize) -> Object {
        let real = self.lab.pod("pod1b").ipv4();
        let address = |i: usize| -> Ipv4Addr {
            match (n, i) {
                (0, _) => real,
                (_, 0) => Ipv4Addr::from(0x0bff_0000 + generation as u32),
                _ => Ipv4Addr::from(0x0b00_0000 + (n * 16 + i) as u32),
            }
        };
        let node = |i: usize| if n == 0 { "node1".into() } else { format!("node{}", 2 + i) };
        let count = if n == 0 { 1 } else { endpoints };
        slice(&self.name(n), (0..count).map(|i| (address(i), node(i))))
    }

    pub(crate) fn start_agent(&self) -> Result<Agent, String> {
        if !matches!(self.setup.mode, Mode::Nftables | Mode::Userspace) {
            // The agent uses the variant in which the kubelet has this chain.
            self.tool(&["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]).ok();
        }
        let flags = [
            "proxy".to_owned(),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            "--hostname-override=node1".into(),
            "--cluster-cidr=10.244.0.0/16".into(),
            format!("--proxy-mode={}", self.setup.mode.flag()),
            "--v=4".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=1000".into(),
        ];
        Agent::start(self.lab.node(1), Path::new(env!("CARGO_BIN_EXE_portway")), &flags)
            .map_err(|e| e.to_string())
    }

    /// Runs the iptables of the mode's variant on the node.
    fn tool(&self, arguments: &[&str]) -> std::io::Result<std::process::ExitStatus> {
        let mut command = Command::new(self.setup.mode.tool());
        self.lab.node(1).namespace().run(|| command.args(arguments).status())
    }

    fn name(&self, n: usize) -> String {
        if n == 0 { format!("service-{:05}-real", self.setup.position) } else { format!("service-{n:05}") }
    }

    pub(crate) fn service(&self, n: usize) -> Object {
        let node_port = self.setup.node_ports.then_some(20_000 + n as i32);
        service(&self.name(n), &vip(n).to_string(), node_port)
    }

    /// The cluster IP and port of a Service.
    pub(crate) fn vip(&self, n: usize) -> SocketAddr {
        SocketAddr::new(vip(n), 80)
    }

    /// A value from the agent's metrics.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text =
            self.lab.node(1).namespace().run(|| get(SocketAddr::from(([127, 0, 0, 1], 10249)))).ok()?;
        let line = text.lines().find(|l| l.starts_with(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        std::fs::remove_file(&self.kubeconfig).ok();
    }
}

fn get(to: SocketAddr) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A Service with one port and one cluster IP; an empty one is for the API server to allocate.
pub(crate) fn service(name: &str, cluster_ip: &str, node_port: Option<i32>) -> Object {
    let port = api::ServicePort {
        name: "http".into(),
        protocol: "TCP".into(),
        port: 80,
        node_port: node_port.unwrap_or(0),
        ..Default::default()
    };
    let ips = Some(cluster_ip.to_owned()).filter(|ip| !ip.is_empty());
    Object::Service(api::Service {
        metadata: Some(meta(name, HashMap::from([("app".to_owned(), name.to_owned())]))),
        spec: Some(api::ServiceSpec {
            cluster_ip: cluster_ip.to_owned(),
            cluster_ips: ips.into_iter().collect(),
            ip_families: vec!["IPv4".into()],
            kind: if node_port.is_some() { "NodePort".into() } else { "ClusterIP".into() },
            ports: vec![port],
            session_affinity: "None".into(),
            internal_traffic_policy: Some("Cluster".into()),
            external_traffic_policy: if node_port.is_some() { "Cluster".into() } else { String::new() },
            ..Default::default()
        }),
        status: None,
    })
}

/// The EndpointSlice of a Service: the addresses of its endpoints, and their nodes.
pub(crate) fn slice(service: &str, endpoints: impl Iterator<Item = (Ipv4Addr, String)>) -> Object {
    let endpoint = |(address, node): (Ipv4Addr, String)| api::Endpoint {
        addresses: vec![address.to_string()],
        conditions: Some(api::EndpointConditions { ready: Some(true), ..Default::default() }),
        node_name: Some(node),
        hints: None,
    };
    let port = api::EndpointPort {
        name: Some("http".into()),
        protocol: Some("TCP".into()),
        port: Some(PORT.into()),
    };
    let labels = HashMap::from([("kubernetes.io/service-name".to_owned(), service.to_owned())]);
    Object::EndpointSlice(api::EndpointSlice {
        metadata: Some(meta(&format!("{service}-x7k2p"), labels)),
        address_type: "IPv4".into(),
        ports: vec![port],
        endpoints: endpoints.map(endpoint).collect(),
    })
}

pub(crate) fn vip(n: usize) -> IpAddr {
    Ipv4Addr::from(0x0a60_0100 + n as u32).into()
}

pub(crate) fn meta(name: &str, labels: HashMap<String, String>) -> api::ObjectMeta {
    let uid = format!("b5b5a9f8-0f3e-4a4b-9a53-{:012}", labels.len());
    api::ObjectMeta {
        name: name.to_owned(),
        namespace: "default".to_owned(),
        uid,
        labels,
        ..Default::default()
    }
}

/// The node of the lab.
pub(crate) fn node(name: &str) -> Object {
    let mut metadata = meta(name, HashMap::new());
    metadata.namespace.clear();
    let address = api::NodeAddress { kind: "InternalIP".into(), address: "192.168.50.11".into() };
    Object::Node(api::Node {
        metadata: Some(metadata),
        spec: None,
        status: Some(api::NodeStatus { addresses: vec![address], ..Default::default() }),
    })
}

/// Resident memory of a process in MB: current and peak.
pub(crate) fn memory(pid: u32) -> Option<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let of = |name: &str| -> Option<f64> {
        let line = status.lines().find(|l| l.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    };
    Some((of("VmRSS:")?, of("VmHWM:")?))
}

/// CPU time of a process so far, in seconds.
pub(crate) fn cpu(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(") ").next()?.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    // utime and stime, in clock ticks of 1/100 s (USER_HZ).
    Some((ticks(11)? + ticks(12)?) / 100.0)
}
