//! The cluster of a turn: a node with clients and two serving pods, and an API server that the proxy watches.

use super::Contender;
use super::binary::Peer;
use super::source::{Origin, Source};
use crate::Options;
use crate::cluster::{Mode, PORT, node, slice};
use portway_lab::{Agent, Lab, Layout, Namespace, Port, guest};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The pods that serve.
pub(super) const SERVING: [&str; 2] = ["pod1a", "pod1b"];

/// The pods with clients. Each measurement has its own: a connection that began without rules, or to an endpoint that
/// has changed, leaves a conntrack entry for its source port, and a later connection from that port would follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// Connections before the rules exist.
    Start,
    /// Connections to an endpoint that does not change.
    Steady,
    /// Connections while the endpoint changes.
    Changes,
    /// Connections while rules are removed or the mode is switched.
    Load,
    /// Connections while the mode is switched back.
    LoadBack,
}

impl Client {
    fn pod(self) -> &'static str {
        match self {
            Client::Start => "pod1c",
            Client::Steady => "pod1d",
            Client::Changes => "pod1e",
            Client::Load => "pod1f",
            Client::LoadBack => "pod1g",
        }
    }
}

/// The port of `/proxyMode`.
const STATUS_PORT: u16 = 10249;
/// The programs of each variant of iptables.
const TOOLS: [&str; 6] =
    ["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"];

/// The cluster of a turn; removed when dropped.
pub(super) struct Testbed<'a> {
    pub(super) mode: Mode,
    /// The cluster IP and port of the Service with the serving pods.
    pub(super) vip: SocketAddr,
    peer: &'a Peer,
    // Dropped before the lab: a relay to a real API server listens in the node's namespace.
    source: Source<'a>,
    lab: Lab,
    files: Files,
    endpoints: usize,
    /// The number of Services before the one with the serving pods, in the order of names.
    position: usize,
}

impl<'a> Testbed<'a> {
    /// Builds the lab, and fills the API server.
    pub(super) fn build(
        options: &Options,
        peer: &'a Peer,
        origin: &'a Origin,
        mode: Mode,
    ) -> Result<Testbed<'a>, String> {
        let lab = Layout { nodes: 1, pods_per_node: 7, clients: 0 }.build().map_err(|e| e.to_string())?;
        for pod in SERVING {
            lab.pod(pod).serve(&[Port::Tcp(PORT)]).map_err(|e| e.to_string())?;
        }
        let source = origin.open(lab.node(1).namespace())?;
        let files = Files::create(mode, &source.kubeconfig())?;
        let mut testbed = Testbed {
            mode,
            vip: SocketAddr::from(([0, 0, 0, 0], 80)),
            peer,
            source,
            lab,
            files,
            endpoints: options.endpoints,
            position: options.peer_services / 2,
        };
        testbed.fill(options.peer_services)?;
        testbed.create_hint()?;
        Ok(testbed)
    }

    fn fill(&mut self, services: usize) -> Result<(), String> {
        self.source.put(node(self.source.node_name()))?;
        self.move_to(SERVING[0])?;
        let ip = self.source.put_service(&self.name(0), 0)?;
        self.vip.set_ip(ip);
        for n in 1..services {
            self.source.put_service(&self.name(n), n)?;
            self.change(n, 0)?;
        }
        Ok(())
    }

    fn name(&self, n: usize) -> String {
        match n {
            0 => format!("portway-bench-{:05}-real", self.position),
            n => format!("portway-bench-{n:05}"),
        }
    }

    /// The namespace of a client.
    pub(super) fn client(&self, client: Client) -> &Namespace {
        self.lab.pod(client.pod()).namespace()
    }

    /// Makes a pod the only endpoint of the Service at the VIP.
    pub(super) fn move_to(&self, pod: &str) -> Result<(), String> {
        let endpoint = (self.lab.pod(pod).ipv4(), self.source.node_name().to_owned());
        self.source.put(slice(&self.name(0), std::iter::once(endpoint)))
    }

    /// Changes the first endpoint of another Service; its pods do not exist.
    pub(super) fn change(&self, n: usize, generation: usize) -> Result<(), String> {
        let address = |i: usize| match i {
            0 => Ipv4Addr::from(0x0bff_0000 + (generation % 0xffff) as u32),
            _ => Ipv4Addr::from(0x0b00_0000 + (n * 16 + i) as u32),
        };
        let endpoints = (0..self.endpoints).map(|i| (address(i), format!("node{}", 2 + i)));
        self.source.put(slice(&self.name(n), endpoints))
    }

    /// The kubelet's chain, by which Portway finds the variant of iptables.
    fn create_hint(&self) -> Result<(), String> {
        match self.mode {
            Mode::Nftables => Ok(()),
            mode => run(
                self.lab.node(1).namespace(),
                mode.tool(),
                &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"],
            ),
        }
    }

    /// Writes the configuration for a mode.
    pub(super) fn configure(&self, mode: Mode) -> Result<(), String> {
        self.files.write_configuration(mode, self.source.node_name())
    }

    /// Starts a proxy in a mode.
    pub(super) fn start(&self, contender: Contender, mode: Mode) -> Result<Agent, String> {
        self.configure(mode)?;
        let mut command = match contender {
            Contender::KubeProxy => Command::new(&self.peer.path),
            Contender::Portway => {
                let mut portway = Command::new(env!("CARGO_BIN_EXE_portway"));
                portway.arg("proxy");
                portway
            }
        };
        command.arg(format!("--config={}", self.files.configuration().display()));
        command.env("PATH", self.files.search_path());
        Agent::run(self.lab.node(1), command).map_err(|e| e.to_string())
    }

    /// Removes all rules of the mode, as the restart of a firewall does.
    pub(super) fn flush(&self) -> Result<(), String> {
        let node = self.lab.node(1).namespace();
        match self.mode {
            Mode::Nftables => run(node, "nft", &["flush", "ruleset"]),
            Mode::Ipvs => run(node, "ipvsadm", &["--clear"]),
            mode => {
                // The nat table last: until then connections succeed.
                for table in ["mangle", "filter", "nat"] {
                    run(node, mode.tool(), &["-w", "-t", table, "-F"])?;
                    run(node, mode.tool(), &["-w", "-t", table, "-X"])?;
                }
                Ok(())
            }
        }
    }

    /// The mode that the proxy reports.
    pub(super) fn mode_in_force(&self) -> Option<String> {
        let get = || -> std::io::Result<String> {
            let to = SocketAddr::from(([127, 0, 0, 1], STATUS_PORT));
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
            stream.write_all(b"GET /proxyMode HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let page = self.lab.node(1).namespace().run(get).ok()?;
        page.split_once("\r\n\r\n").map(|(_, body)| body.trim().to_owned())
    }
}

/// What the machine lacks for a mode.
pub(super) fn missing_for(mode: Mode) -> Option<String> {
    let probes: &[(&str, &[&str])] = match mode {
        Mode::Nftables => &[("nft", &["list", "tables"])],
        Mode::Ipvs if !guest::has_module("ip_vs") => return Some("this kernel has no ip_vs".into()),
        Mode::Ipvs => {
            &[("ipset", &["list"]), ("ipvsadm", &["-l"]), ("iptables-legacy", &["-w", "-t", "nat", "-S"])]
        }
        Mode::IptablesNft => &[("iptables-nft", &["-w", "-t", "nat", "-S"])],
        Mode::IptablesLegacy => &[("iptables-legacy", &["-w", "-t", "nat", "-S"])],
        Mode::Userspace => return Some("kube-proxy has no such mode".into()),
    };
    let scratch = match Namespace::new("probe") {
        Ok(namespace) => namespace,
        Err(error) => return Some(error.to_string()),
    };
    probes.iter().find_map(|(program, arguments)| run(&scratch, program, arguments).err())
}

/// Runs a program in a namespace; its output is shown only if it fails.
fn run(namespace: &Namespace, program: &str, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    let output = namespace.run(|| command.args(arguments).output()).map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// The files of a testbed: the kubeconfig, the configuration of the proxies, and links to the tools of a variant of
/// iptables; removed when dropped.
struct Files {
    directory: PathBuf,
}

impl Files {
    fn create(mode: Mode, kubeconfig: &str) -> Result<Files, String> {
        static TESTBEDS: AtomicUsize = AtomicUsize::new(0);
        let number = TESTBEDS.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench-peer-{}-{number}", std::process::id());
        let files = Files { directory: Path::new(env!("CARGO_TARGET_TMPDIR")).join(name) };
        files.fill(mode, kubeconfig).map_err(|e| format!("{}: {e}", files.directory.display()))?;
        Ok(files)
    }

    fn fill(&self, mode: Mode, kubeconfig: &str) -> std::io::Result<()> {
        std::fs::create_dir_all(self.tools())?;
        std::fs::write(self.directory.join("kubeconfig"), kubeconfig)?;
        // kube-proxy runs `iptables`, whichever variant that is.
        for tool in TOOLS.iter().filter(|_| mode != Mode::Nftables) {
            let variant = tool.replacen("tables", &mode.tool().replacen("ip", "", 1), 1);
            if let Some(program) = find(&variant) {
                symlink(program, self.tools().join(tool))?;
            }
        }
        Ok(())
    }

    fn tools(&self) -> PathBuf {
        self.directory.join("bin")
    }

    fn search_path(&self) -> String {
        format!("{}:{}", self.tools().display(), std::env::var("PATH").unwrap_or_default())
    }

    fn configuration(&self) -> PathBuf {
        self.directory.join("config.yaml")
    }

    /// Conntrack is left as it is: a namespace cannot set the size of its table.
    fn write_configuration(&self, mode: Mode, node: &str) -> Result<(), String> {
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
             kind: KubeProxyConfiguration\n\
             mode: {}\n\
             hostnameOverride: {node}\n\
             clusterCIDR: 10.244.0.0/16\n\
             clientConnection: {{kubeconfig: {}}}\n\
             conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n",
            mode.flag(),
            self.directory.join("kubeconfig").display(),
        );
        // Replaced as a whole: Portway reads it as soon as it changes.
        let new = self.directory.join("config.new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, self.configuration()));
        written.map_err(|e| format!("{}: {e}", new.display()))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

/// The path of a program.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.exists())
}
