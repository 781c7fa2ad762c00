//! The lab and the Services of the demo, and its output.

use portway_lab::{Agent, Lab, LabHost, Layout, Port, Probe, eventually};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A Service of the demo.
pub(crate) struct Service {
    name: &'static str,
    pub(crate) ip: &'static str,
    port: u16,
    pub(crate) pods: &'static [&'static str],
}

impl Service {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip.parse().unwrap_or([0, 0, 0, 0].into()), self.port)
    }
}

pub(crate) const NGINX: Service =
    Service { name: "nginx", ip: "10.109.134.113", port: 8080, pods: &["pod1a", "pod1b", "pod2a"] };
const MY_SERVICE: Service =
    Service { name: "my-service", ip: "10.109.163.26", port: 80, pods: &["pod1b", "pod2a", "pod2b"] };
const NGINX_POD08: Service =
    Service { name: "nginx-pod08", ip: "10.96.125.237", port: 8080, pods: &["pod2b", "pod2c"] };
const SERVICES: [Service; 3] = [NGINX, MY_SERVICE, NGINX_POD08];

/// The port that the pods serve.
const TARGET_PORT: u16 = 80;
/// The time limit for a condition.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Two nodes with their pods and agents, and the manifests that the agents read.
pub(crate) struct Cluster {
    pub(crate) agents: Vec<Agent>,
    manifests: PathBuf,
    pub(crate) lab: Lab,
}

impl Cluster {
    pub(crate) fn build() -> Result<Cluster, String> {
        let lab = Layout { nodes: 2, pods_per_node: 3, clients: 1 }.build().map_err(|e| e.to_string())?;
        for pod in lab.pods() {
            pod.serve(&[Port::Tcp(TARGET_PORT)]).map_err(|e| e.to_string())?;
        }
        // Next to the executable, where no other process writes.
        let executable = std::env::current_exe().map_err(|e| e.to_string())?;
        let manifests = executable.with_file_name(format!("demo-manifests-{}", std::process::id()));
        std::fs::create_dir_all(&manifests).map_err(|e| e.to_string())?;
        Ok(Cluster { agents: Vec::new(), manifests, lab })
    }

    pub(crate) fn describe(&self) {
        for host in self.lab.hosts() {
            let [v4, v6] = host.ips();
            println!("   {:8} {v4:<16} {v6}", host.name());
        }
    }

    pub(crate) fn apply_services(&self) -> Result<(), String> {
        for service in &SERVICES {
            let Service { name, ip, port, .. } = service;
            self.write(&format!("{name}.yaml"), &format!(
                "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: default\nspec:\n  \
                 clusterIP: {ip}\n  ports:\n  - port: {port}\n    protocol: TCP\n    targetPort: {TARGET_PORT}\n"
            ))?;
            self.apply_endpoints(service, service.pods)?;
            println!("   {name:12} {ip}:{port:<5} → {}", service.pods.join(", "));
        }
        for node in self.lab.nodes() {
            let [v4, v6] = node.ips();
            self.write(
                &format!("{}.yaml", node.name()),
                &format!(
                    "apiVersion: v1\nkind: Node\nmetadata:\n  name: {}\nstatus:\n  addresses:\n  \
                 - {{type: InternalIP, address: \"{v4}\"}}\n  - {{type: InternalIP, address: \"{v6}\"}}\n",
                    node.name()
                ),
            )?;
        }
        Ok(())
    }

    pub(crate) fn apply_endpoints(&self, service: &Service, pods: &[&str]) -> Result<(), String> {
        let name = service.name;
        let mut yaml = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-1\n  namespace: default\n  \
             labels:\n    kubernetes.io/service-name: {name}\naddressType: IPv4\nports:\n- name: \"\"\n  port: {TARGET_PORT}\n\
             endpoints:\n"
        );
        for pod in pods {
            let ip = self.lab.pod(pod).ipv4();
            yaml += &format!("- addresses: [{ip}]\n  nodeName: node{}\n", &pod[3..4]);
        }
        self.write(&format!("{name}-endpoints.yaml"), &yaml)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let next = self.manifests.join(format!("{name}.next"));
        std::fs::write(&next, text)
            .and_then(|()| std::fs::rename(&next, self.manifests.join(name)))
            .map_err(|e| e.to_string())
    }

    pub(crate) fn start_agents(&mut self, mode: &str) -> Result<(), String> {
        let binary = binary()?;
        for node in self.lab.nodes() {
            let flags = [
                "proxy".to_owned(),
                format!("--manifests={}", self.manifests.display()),
                format!("--hostname-override={}", node.name()),
                "--cluster-cidr=10.244.0.0/16,fd10:244::/32".into(),
                format!("--proxy-mode={mode}"),
            ];
            println!("   {}: portway {}", node.name(), flags.join(" "));
            self.agents.push(Agent::start(node, &binary, &flags).map_err(|e| e.to_string())?);
        }
        for agent in &mut self.agents {
            agent.wait_for("portway proxy started", WAIT_TIMEOUT).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Sends 90 requests to each Service from a pod, a node and the external client.
    pub(crate) fn show_requests(&self) -> Result<(), String> {
        let hosts = [self.lab.pod("pod1c"), self.lab.node(2), self.lab.client(1)];
        for service in &SERVICES {
            for host in hosts {
                let probe = Probe::tcp(host, service.address()).timeout(Duration::from_secs(2));
                let attempt = || {
                    let outcome = probe.count(90).run();
                    let right = outcome.answered() == 90 && outcome.answers.len() == service.pods.len();
                    if right { Ok(outcome) } else { Err(outcome.to_string()) }
                };
                let outcome =
                    eventually(WAIT_TIMEOUT, attempt).map_err(|e| format!("{}: {e}", service.name))?;
                println!("   {:8} → {:12} {}", host.name(), service.name, outcome);
            }
        }
        note(
            "requests of a pod keep their source address; those of a node or an external client get the node's address",
        );
        Ok(())
    }

    pub(crate) fn stop_agents(&mut self) -> Result<(), String> {
        self.agents.drain(..).try_for_each(|agent| agent.terminate().map(drop).map_err(|e| e.to_string()))
    }

    /// Stops the agents, removes their rules, and checks that no object and no namespace is left.
    pub(crate) fn tear_down(mut self) -> Result<(), String> {
        self.stop_agents()?;
        note("the agents have ended, and their rules still work");
        let outcome =
            Probe::tcp(self.lab.pod("pod1c"), NGINX.address()).count(30).timeout(WAIT_TIMEOUT).run();
        println!("   pod1c → {}: {outcome}", NGINX.address());
        let binary = binary()?;
        for node in self.lab.nodes() {
            let binary = binary.display().to_string();
            println!("{}", command(node, &binary, &["cleanup"]));
            let left = command(node, &binary, &["cleanup", "--dry-run"]);
            println!("{left}");
            if !left.contains("there is nothing to remove") {
                return Err(format!("{}: cleanup left objects behind", node.name()));
            }
        }
        std::fs::remove_dir_all(&self.manifests).map_err(|e| e.to_string())?;
        drop(self);
        let prefix = format!("portway.{}.", std::process::id());
        let left = std::fs::read_dir("/run/netns").map_or(0, |dir| {
            dir.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).count()
        });
        println!("   {left} network namespaces left");
        if left == 0 { Ok(()) } else { Err("network namespaces were left behind".into()) }
    }
}

/// The path of the `portway` binary, in the parent of the directory of the examples.
fn binary() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let path = own.parent().and_then(Path::parent).map(|p| p.join("portway"));
    path.filter(|p| p.exists()).ok_or_else(|| "portway is not built: run `make demo`".to_owned())
}

/// Runs a command on a host; returns the command line and its output.
pub(crate) fn command(host: &LabHost, program: &str, arguments: &[&str]) -> String {
    let shown = Path::new(program).file_name().map_or(program.into(), |n| n.to_string_lossy());
    let mut text = format!("   {}$ {shown} {}", host.name(), arguments.join(" "));
    let output = host.namespace().run(|| Command::new(program).args(arguments).output());
    match output {
        Ok(output) => {
            for line in
                [output.stdout, output.stderr].concat().split(|b| *b == b'\n').filter(|l| !l.is_empty())
            {
                text += &format!("\n   {}", String::from_utf8_lossy(line));
            }
        }
        Err(e) => text += &format!("\n   {e}"),
    }
    text
}

pub(crate) fn heading(text: &str) {
    if std::io::stdout().is_terminal() {
        println!("\n\x1b[1m{text}\x1b[0m");
    } else {
        println!("\n{text}");
    }
}

pub(crate) fn note(text: &str) {
    println!("   · {text}");
}
