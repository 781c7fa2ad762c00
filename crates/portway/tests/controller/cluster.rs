//! A node with pods, an API server on it, the controllers and perhaps a proxy.

use portway_lab::api::ApiServer;
use portway_lab::{Agent, Lab, Layout, Namespace, Port, Probe, eventually};
use portway_model::Family;
use portway_model::api::{
    Condition, Endpoints, Object, ObjectMeta, Pod, PodIp, PodSpec, PodStatus, Resource, Service, Time,
    complete,
};
use portway_testkit::battery::{LabNetwork, PORT};
use portway_testkit::objects::{Manifest, node};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit for a condition.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "default";

/// The node, the API server and the processes.
pub(crate) struct ControllerLab {
    pub(crate) controllers: Vec<Agent>,
    proxy: Option<Agent>,
    pub(crate) api: ApiServer,
    net: LabNetwork,
    kubeconfig: PathBuf,
    pub(crate) lab: Lab,
}

impl ControllerLab {
    pub(crate) fn new(name: &str) -> Result<ControllerLab, String> {
        let lab = Layout { nodes: 1, pods_per_node: 3, clients: 1 }.build().map_err(|e| e.to_string())?;
        for pod in lab.pods() {
            pod.serve(&[Port::Tcp(PORT)]).map_err(|e| e.to_string())?;
        }
        let address = SocketAddr::from(([127, 0, 0, 1], 6443));
        let api = ApiServer::start(lab.node(1), address).map_err(|e| e.to_string())?;
        let kubeconfig =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::write(&kubeconfig, api.kubeconfig()).map_err(|e| e.to_string())?;
        let net = LabNetwork {
            family: Family::V4,
            pods: lab.pods().iter().map(|p| (p.name().to_owned(), p.ipv4().into())).collect(),
            nodes: lab.nodes().iter().map(|n| n.ipv4().into()).collect(),
        };
        api.apply(node("node1", "zone-a", &lab.node(1).ips(), &[]).object());
        Ok(ControllerLab { controllers: Vec::new(), proxy: None, api, net, kubeconfig, lab })
    }

    fn run(&self, flags: &[&str]) -> Result<Agent, String> {
        let binary = Path::new(env!("CARGO_BIN_EXE_portway"));
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let mut all = flags.to_vec();
        all.insert(1, &kubeconfig);
        Agent::start(self.lab.node(1), binary, &all).map_err(|e| e.to_string())
    }

    /// Starts the controllers, with a short Lease.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        self.start_with(&["--bind-address=127.0.0.1:0"])
    }

    pub(crate) fn start_with(&mut self, flags: &[&str]) -> Result<(), String> {
        let mut all = vec![
            "controller",
            "--v=4",
            "--leader-elect-lease-duration=3s",
            "--leader-elect-renew-deadline=2s",
            "--leader-elect-retry-period=200ms",
        ];
        all.extend(flags);
        let controller = self.run(&all)?;
        self.controllers.push(controller);
        Ok(())
    }

    /// Starts the proxy.
    pub(crate) fn start_proxy(&mut self) -> Result<(), String> {
        let flags = ["proxy", "--hostname-override=node1", "--cluster-cidr=10.244.0.0/16"];
        self.proxy = Some(self.run(&flags)?);
        Ok(())
    }

    /// A Service with a selector and a cluster IP of this number.
    pub(crate) fn service(&self, name: &str, number: u8) {
        self.service_with(name, number, |_| {});
    }

    pub(crate) fn service_with(&self, name: &str, number: u8, change: impl FnOnce(&mut Service)) {
        let Object::Service(mut service) = Manifest::from(self.net.service(name, number)).object() else {
            return;
        };
        service.metadata.get_or_insert_default().uid = format!("uid-of-{name}");
        let spec = service.spec.get_or_insert_default();
        spec.selector = [("app".to_owned(), name.to_owned())].into();
        spec.ports.iter_mut().for_each(|port| port.target_port = Some(i32::from(PORT).into()));
        change(&mut service);
        self.api.put(service);
    }

    /// A Pod of a Service at the address of a pod of the lab.
    pub(crate) fn pod(&self, service: &str, name: &str, ready: bool) {
        let ip = self.lab.pod(name).ipv4().to_string();
        self.pod_at(service, name, &ip, ready);
    }

    pub(crate) fn pod_at(&self, service: &str, name: &str, ip: &str, ready: bool) {
        self.api.put(Pod {
            metadata: Some(ObjectMeta {
                name: name.to_owned(),
                namespace: NAMESPACE.to_owned(),
                uid: format!("uid-of-{name}"),
                labels: [("app".to_owned(), service.to_owned())].into(),
                ..ObjectMeta::default()
            }),
            spec: Some(PodSpec { node_name: "node1".to_owned(), ..PodSpec::default() }),
            status: Some(PodStatus {
                phase: "Running".to_owned(),
                conditions: vec![Condition {
                    kind: "Ready".to_owned(),
                    status: if ready { "True" } else { "False" }.to_owned(),
                    last_transition_time: Some(Time { seconds: 1_700_000_000 }),
                    ..Condition::default()
                }],
                pod_ip: ip.to_owned(),
                pod_ips: vec![PodIp { ip: ip.to_owned() }],
                ..PodStatus::default()
            }),
        });
    }

    pub(crate) fn delete_pod(&self, name: &str) {
        self.api.delete(Pod::TYPE, NAMESPACE, name);
    }

    /// The addresses in the slices of a Service, sorted, with `!` before those that are not ready.
    pub(crate) fn addresses(&self, service: &str) -> Vec<String> {
        let slices = self.api.objects::<complete::EndpointSlice>().into_iter().filter(|slice| {
            let labels = slice.metadata.as_ref().map(|meta| &meta.labels);
            labels.and_then(|labels| labels.get("kubernetes.io/service-name")).is_some_and(|s| s == service)
        });
        let mut found: Vec<String> = slices
            .flat_map(|slice| slice.endpoints)
            .map(|endpoint| {
                let ready = endpoint.conditions.is_some_and(|c| c.ready == Some(true));
                format!("{}{}", if ready { "" } else { "!" }, endpoint.addresses.join(","))
            })
            .collect();
        found.sort();
        found
    }

    /// The addresses in the Endpoints object of a Service, sorted, with `!` before those that are not ready.
    pub(crate) fn endpoints(&self, service: &str) -> Vec<String> {
        let is_named = |e: &Endpoints| e.metadata.as_ref().is_some_and(|meta| meta.name == service);
        let subsets = self.api.objects::<Endpoints>().into_iter().filter(is_named).flat_map(|e| e.subsets);
        let mut found: Vec<String> = subsets
            .flat_map(|subset| {
                let ready = subset.addresses.into_iter().map(|a| a.ip);
                let unready = subset.not_ready_addresses.into_iter().map(|a| format!("!{}", a.ip));
                ready.chain(unready).collect::<Vec<_>>()
            })
            .collect();
        found.sort();
        found
    }

    /// Waits until slices and Endpoints object of a Service have exactly these addresses.
    pub(crate) fn expect(&self, service: &str, addresses: &[&str]) -> Result<(), String> {
        let mut sorted: Vec<&str> = addresses.to_vec();
        sorted.sort_unstable();
        let attempt = || {
            let found = (self.addresses(service), self.endpoints(service));
            if found.0 == sorted && found.1 == sorted { Ok(()) } else { Err(format!("{found:?}")) }
        };
        eventually(WAIT_TIMEOUT, attempt).map_err(|e| format!("{service} should have {sorted:?}: {e}"))
    }

    /// Waits until exactly these pods answer at the cluster IP of a number; without pods, none may.
    pub(crate) fn expect_answers(&self, number: u8, pods: &[&str]) -> Result<(), String> {
        let probe =
            Probe::tcp(self.lab.client(1), self.at_cluster_ip(number)).timeout(Duration::from_millis(300));
        let attempt = || {
            let outcome = probe.count(if pods.is_empty() { 2 } else { 48 }).run();
            let right = match pods.is_empty() {
                true => outcome.answered() == 0,
                false => outcome.all_answered() && outcome.answers.keys().eq(pods.iter()),
            };
            if right { Ok(()) } else { Err(outcome.to_string()) }
        };
        eventually(WAIT_TIMEOUT, attempt)
            .map_err(|e| format!("Service {number} should be answered by {pods:?}: {e}"))
    }

    /// Whether a pod answers at the cluster IP of a number.
    pub(crate) fn is_answered(&self, number: u8) -> bool {
        let probe = Probe::tcp(self.lab.client(1), self.at_cluster_ip(number));
        probe.timeout(Duration::from_millis(300)).run().answered() > 0
    }

    /// Port 80 of the cluster IP of a number.
    pub(crate) fn at_cluster_ip(&self, number: u8) -> SocketAddr {
        self.net.at_cluster_ip(number)
    }

    /// A page of a server on the node.
    pub(crate) fn page(&self, port: u16, path: &str) -> Result<String, String> {
        let ask = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
            std::io::read_to_string(stream)
        };
        AsRef::<Namespace>::as_ref(self.lab.node(1)).run(ask).map_err(|e| e.to_string())
    }

    /// The writes of slices and Endpoints objects so far.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.api.writes().into_iter().filter(|write| !write.contains("leases")).collect()
    }

    pub(crate) fn log(&self) -> String {
        let logs = self.controllers.iter().chain(&self.proxy).map(|process| process.log().tail(40));
        logs.collect::<Vec<_>>().join("\n---\n")
    }
}

impl Drop for ControllerLab {
    fn drop(&mut self) {
        std::fs::remove_file(&self.kubeconfig).ok();
    }
}
