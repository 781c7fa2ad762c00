//! The lab of an agent test: one node with two pods, a client outside, a directory of manifests, and at most one agent.
//!
//! There is a Service `web` (10.96.0.1 and fd96::1, node port 30001) with both pods as endpoints, so that every test can
//! check whether Services work.

use crate::http::Page;
use crate::metrics::Metrics;
use crate::{Outcome, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Agent, Lab, Layout, Log, Namespace, Port, Probe, eventually, guest};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a condition is awaited; in a guest everything takes several times as long.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(if guest::is_inside() { 120 } else { 60 })
}
/// How long an answer may take.
pub(crate) fn answer() -> Duration {
    Duration::from_millis(if guest::is_inside() { 2000 } else { 500 })
}
/// How long a packet that vanishes is waited for.
pub(crate) fn silence() -> Duration {
    Duration::from_millis(if guest::is_inside() { 1000 } else { 250 })
}
/// The binary under test.
pub(crate) const PORTWAY: &str = env!("CARGO_BIN_EXE_portway");
/// The cluster IPs of `web`.
pub(crate) const WEB: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0, 1))];
/// The node port of `web`.
pub(crate) const NODE_PORT: u16 = 30001;
/// Where the health pages are.
pub(crate) const HEALTH_PORT: u16 = 10256;
/// Where the status pages are.
pub(crate) const STATUS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

pub(crate) struct AgentLab {
    agent: Option<Agent>,
    folder: Folder,
    lab: Lab,
}

impl AgentLab {
    /// Builds it, without an agent.
    pub(crate) fn build() -> Result<AgentLab, Failed> {
        let lab = Layout { nodes: 1, pods_per_node: 2, clients: 1 }.build()?;
        for pod in lab.pods() {
            pod.serve(&[Port::Tcp(8080), Port::Udp(8080)])?;
        }
        let world = AgentLab { agent: None, folder: Folder::new(), lab };
        world.apply("node1.yaml", &objects::node(&world.lab.node(1).ips(), ""));
        let ips = "clusterIPs: ['10.96.0.1', 'fd96::1']\ntype: NodePort";
        let web = objects::service("web", "10.96.0.1", ips);
        let web = web.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30001");
        // It is the oldest Service, so it wins every conflict.
        world.apply("web.yaml", &web.replace(objects::MADE, "2024-01-01T00:00:00Z"));
        for (i, family) in ["v4", "v6"].into_iter().enumerate() {
            let pods = ["pod1a", "pod1b"].map(|pod| world.lab.pod(pod).ips()[i]);
            let name = format!("web-{family}");
            world.apply(&format!("{name}.yaml"), &objects::slice("web", &name, &pods));
        }
        Ok(world)
    }

    pub(crate) fn node(&self) -> &Namespace {
        self.lab.node(1).namespace()
    }

    pub(crate) fn client(&self) -> &Namespace {
        self.lab.client(1).namespace()
    }

    pub(crate) fn pod(&self, name: &str) -> &Namespace {
        self.lab.pod(name).namespace()
    }

    /// The addresses of a pod, IPv4 first.
    pub(crate) fn pod_ips(&self, name: &str) -> [IpAddr; 2] {
        self.lab.pod(name).ips()
    }

    /// The addresses of the node, IPv4 first.
    pub(crate) fn node_ips(&self) -> [IpAddr; 2] {
        self.lab.node(1).ips()
    }

    /// The addresses of the client, IPv4 first.
    pub(crate) fn client_ips(&self) -> [IpAddr; 2] {
        self.lab.client(1).ips()
    }

    /// Serves on the node itself.
    pub(crate) fn serve_on_node(&self, port: u16) -> Outcome {
        Ok(self.lab.node(1).serve(&[Port::Tcp(port)])?)
    }

    /// Runs a program on the client's machine; it must succeed.
    pub(crate) fn client_runs(&self, program: &str, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(program);
        command.args(arguments);
        let output = self.client().run(|| command.output())?;
        ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs a command in a pod; it must succeed.
    pub(crate) fn in_pod(&self, pod: &str, command: &str) -> Outcome {
        let mut words = command.split(' ');
        let mut process = Command::new(words.next().unwrap_or_default());
        process.args(words);
        let output = self.pod(pod).run(|| process.output())?;
        ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Ends what a pod serves.
    pub(crate) fn stop_servers(&self, pod: &str) {
        self.lab.pod(pod).stop_servers();
    }

    /// Gives the node another address.
    pub(crate) fn add_address(&self, net: &str) -> Outcome {
        Ok(self.lab.node(1).add_address(net.parse()?)?)
    }

    /// Takes it away again.
    pub(crate) fn remove_address(&self, net: &str) -> Outcome {
        Ok(self.lab.node(1).remove_address(net.parse()?)?)
    }

    /// A folder for files that are no manifests.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Writes a manifest, all at once, as `kubectl` and editors do.
    pub(crate) fn apply(&self, file: &str, text: &str) {
        self.write(&format!("manifests/{file}"), text);
    }

    /// Removes a manifest.
    pub(crate) fn delete(&self, file: &str) {
        let removed = std::fs::remove_file(self.path("manifests").join(file));
        assert!(removed.is_ok(), "remove {file}: {removed:?}");
    }

    /// Writes any file, all at once.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        let next = self.path(".next");
        let written = std::fs::write(&next, text).and_then(|()| std::fs::rename(next, &path));
        assert!(written.is_ok(), "write {}: {written:?}", path.display());
    }

    /// The flags that every agent gets.
    pub(crate) fn flags(&self) -> Vec<String> {
        let manifests = self.path("manifests");
        vec![
            format!("--manifests={}", manifests.display()),
            "--hostname-override=node1".to_owned(),
            "--v=4".to_owned(),
        ]
    }

    /// Starts the agent with the usual flags and these, and waits until it runs.
    pub(crate) fn start(&mut self, flags: &[&str]) -> Result<&mut Agent, Failed> {
        let mut command = Command::new(PORTWAY);
        command.arg("proxy").args(self.flags()).args(flags);
        self.start_as(command)
    }

    /// Starts a command as the agent, and waits until it runs.
    pub(crate) fn start_as(&mut self, command: Command) -> Result<&mut Agent, Failed> {
        self.launch(command)?.wait_for("portway proxy started", patience())?;
        self.agent()
    }

    /// Starts a command as the agent.
    pub(crate) fn launch(&mut self, command: Command) -> Result<&mut Agent, Failed> {
        self.agent = None;
        let agent = Agent::run(self.lab.node(1), command)?;
        Ok(self.agent.insert(agent))
    }

    pub(crate) fn agent(&mut self) -> Result<&mut Agent, Failed> {
        self.agent.as_mut().ok_or_else(|| "no agent runs".into())
    }

    /// Waits for a line in the agent's log that has all these words in it, in any order.
    pub(crate) fn logged(&mut self, words: &[&str]) -> Result<String, Failed> {
        let what = format!("write a line with {words:?}");
        let right = |line: &str| words.iter().all(|word| line.contains(word));
        let line = self.agent()?.wait_until(&what, right, patience())?;
        Ok(line)
    }

    /// Asks the agent to end; it must do so with exit code 0.
    pub(crate) fn stop(&mut self) -> Result<Log, Failed> {
        let agent = self.agent.take().ok_or("no agent runs")?;
        let (status, log) = agent.terminate()?;
        ensure(status.code() == Some(0), || format!("it ended with {status}:\n{log}"))?;
        Ok(log)
    }

    /// Kills the agent.
    pub(crate) fn kill(&mut self) -> Result<(), Failed> {
        drop(self.agent.take().ok_or("no agent runs")?.kill());
        Ok(())
    }

    /// Runs a command on the node to its end.
    pub(crate) fn run(&self, mut command: Command) -> Result<Output, Failed> {
        Ok(self.node().run(|| command.output())?)
    }

    /// Runs `portway` with these arguments on the node to its end.
    pub(crate) fn portway<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Output, Failed> {
        let mut command = Command::new(PORTWAY);
        command.args(arguments);
        self.run(command)
    }

    /// Runs `nft` on the node, and returns what it says.
    pub(crate) fn nft(&self, arguments: &[&str]) -> Result<String, Failed> {
        let mut command = Command::new("nft");
        command.args(arguments);
        let output = self.run(command)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || format!("nft {arguments:?}: {complaint}"))?;
        Ok(said)
    }

    /// Waits until `web` is answered by both pods, from outside, in both families.
    pub(crate) fn web_works(&self) -> Outcome {
        WEB.iter().try_for_each(|ip| self.reaches(SocketAddr::new(*ip, 80), &["pod1a", "pod1b"]))
    }

    /// Waits until all of these pods, and no others, answer the client at an address.
    pub(crate) fn reaches(&self, to: SocketAddr, pods: &[&str]) -> Outcome {
        let wanted: BTreeSet<&str> = pods.iter().copied().collect();
        let right = |count| {
            let outcome = Probe::tcp(self.client(), to).count(count).timeout(answer()).run();
            let servers = outcome.servers();
            let all = if count == 1 { servers.is_subset(&wanted) } else { servers == wanted };
            if all && outcome.all_answered() { Ok(()) } else { Err(format!("{to}: {outcome}")) }
        };
        eventually(patience(), || right(1).and_then(|()| right(8 + 16 * pods.len())))?;
        Ok(())
    }

    /// Waits until no pod answers the client at an address.
    pub(crate) fn reaches_nobody(&self, to: SocketAddr) -> Outcome {
        let attempt = || {
            let outcome = Probe::tcp(self.client(), to).timeout(silence()).run();
            if outcome.answered() == 0 { Ok(()) } else { Err(format!("{to}: {outcome}")) }
        };
        eventually(patience(), attempt)?;
        Ok(())
    }

    /// A page of the health server, asked from outside.
    pub(crate) fn health(&self, path: &str) -> Result<Page, String> {
        Page::get(self.client(), SocketAddr::new(self.node_ips()[0], HEALTH_PORT), path)
    }

    /// A page of the status server, asked on the node.
    pub(crate) fn status(&self, path: &str) -> Result<Page, String> {
        Page::get(self.node(), STATUS, path)
    }

    /// The metrics as they stand.
    pub(crate) fn metrics(&self) -> Result<Metrics, String> {
        Metrics::parse(&self.status("/metrics")?.body)
    }

    /// Waits until a metric fulfils a condition.
    pub(crate) fn metric(&self, series: &str, condition: impl Fn(f64) -> bool) -> Result<f64, Failed> {
        let value = eventually(patience(), || {
            let value = self.metrics()?.value(series);
            if condition(value) { Ok(value) } else { Err(format!("{series} is {value}")) }
        })?;
        Ok(value)
    }

    /// The end of the log, for a test that fails.
    pub(crate) fn evidence(&self) -> String {
        self.agent.as_ref().map_or("no agent runs".to_owned(), |agent| agent.log().tail(40))
    }
}

/// The directory of a test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static FOLDERS: AtomicUsize = AtomicUsize::new(1);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("agent-{}-{number}", std::process::id()));
        let made = std::fs::create_dir_all(path.join("manifests"));
        assert!(made.is_ok(), "make {}: {made:?}", path.display());
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
