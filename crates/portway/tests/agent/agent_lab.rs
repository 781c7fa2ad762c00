//! The lab of an agent test: one node with two pods, an external client, a directory of manifests, and at most one
//! agent.
//!
//! It has a Service `web` (10.96.0.1 and fd96::1, node port 30001) with both pods as endpoints, so that every test can
//! check whether Services work.

use crate::http::Page;
use crate::metrics::Metrics;
use crate::{Outcome, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Agent, Lab, Layout, Log, Namespace, Port, Probe, eventually, guest, line_has_level};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The time limit for a condition; in a guest everything takes several times as long.
pub(crate) fn wait_timeout() -> Duration {
    Duration::from_secs(if guest::is_inside() { 120 } else { 60 })
}
/// The time limit for an answer.
pub(crate) fn answer_timeout() -> Duration {
    Duration::from_millis(if guest::is_inside() { 2000 } else { 500 })
}
/// The time after which a packet counts as dropped.
pub(crate) fn drop_timeout() -> Duration {
    Duration::from_millis(if guest::is_inside() { 1000 } else { 250 })
}
/// The binary under test.
pub(crate) const PORTWAY: &str = env!("CARGO_BIN_EXE_portway");
/// The cluster IPs of `web`.
pub(crate) const WEB: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd96, 0, 0, 0, 0, 0, 0, 1))];
/// The node port of `web`.
pub(crate) const NODE_PORT: u16 = 30001;
/// The port of the health server.
pub(crate) const HEALTH_PORT: u16 = 10256;
/// The address of the status server.
pub(crate) const STATUS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);

/// The lab, the test's files and the agent.
pub(crate) struct AgentLab {
    agent: Option<Agent>,
    files: TestDirectory,
    lab: Lab,
}

impl AgentLab {
    /// Builds the lab, without an agent.
    pub(crate) fn build() -> Result<AgentLab, Failed> {
        let lab = Layout { nodes: 1, pods_per_node: 2, clients: 1 }.build()?;
        for pod in lab.pods() {
            pod.serve(&[Port::Tcp(8080), Port::Udp(8080)])?;
        }
        let agent_lab = AgentLab { agent: None, files: TestDirectory::new(), lab };
        agent_lab.apply("node1.yaml", &objects::node(&agent_lab.lab.node(1).ips(), ""));
        let ips = "clusterIPs: ['10.96.0.1', 'fd96::1']\ntype: NodePort";
        let web = objects::service("web", "10.96.0.1", ips);
        let web = web.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30001");
        // The oldest Service, so it wins every conflict.
        agent_lab.apply("web.yaml", &web.replace(objects::CREATED, "2024-01-01T00:00:00Z"));
        for (i, family) in ["v4", "v6"].into_iter().enumerate() {
            let pods = ["pod1a", "pod1b"].map(|pod| agent_lab.lab.pod(pod).ips()[i]);
            let name = format!("web-{family}");
            agent_lab.apply(&format!("{name}.yaml"), &objects::slice("web", &name, &pods));
        }
        Ok(agent_lab)
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

    /// Starts a TCP server on the node itself.
    pub(crate) fn serve_on_node(&self, port: u16) -> Outcome {
        Ok(self.lab.node(1).serve(&[Port::Tcp(port)])?)
    }

    /// Runs a program on the client; it must succeed.
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

    /// Stops the servers of a pod.
    pub(crate) fn stop_servers(&self, pod: &str) {
        self.lab.pod(pod).stop_servers();
    }

    /// Adds an address to the node.
    pub(crate) fn add_address(&self, net: &str) -> Outcome {
        Ok(self.lab.node(1).add_address(net.parse()?)?)
    }

    /// Removes an address from the node.
    pub(crate) fn remove_address(&self, net: &str) -> Outcome {
        Ok(self.lab.node(1).remove_address(net.parse()?)?)
    }

    /// A path in the test's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.files.0.join(name)
    }

    /// Writes a manifest and renames it into the directory, so that the agent never reads half of it.
    pub(crate) fn apply(&self, file: &str, text: &str) {
        self.write(&format!("manifests/{file}"), text);
    }

    /// Removes a manifest.
    pub(crate) fn delete(&self, file: &str) {
        let removed = std::fs::remove_file(self.path("manifests").join(file));
        assert!(removed.is_ok(), "remove {file}: {removed:?}");
    }

    /// Writes a file in the test's directory, by renaming it.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        let next = self.path(".next");
        let written = std::fs::write(&next, text).and_then(|()| std::fs::rename(next, &path));
        assert!(written.is_ok(), "write {}: {written:?}", path.display());
    }

    /// The flags of every agent.
    pub(crate) fn flags(&self) -> Vec<String> {
        let manifests = self.path("manifests");
        vec![
            format!("--manifests={}", manifests.display()),
            "--hostname-override=node1".to_owned(),
            "--v=4".to_owned(),
        ]
    }

    /// Starts the agent with the usual flags and these, and waits until it has started.
    pub(crate) fn start(&mut self, flags: &[&str]) -> Result<&mut Agent, Failed> {
        let mut command = Command::new(PORTWAY);
        command.arg("proxy").args(self.flags()).args(flags);
        self.start_as(command)
    }

    /// Runs a command as the agent, and waits until it has started.
    pub(crate) fn start_as(&mut self, command: Command) -> Result<&mut Agent, Failed> {
        self.launch(command)?.wait_for("portway proxy started", wait_timeout())?;
        self.agent()
    }

    /// Runs a command as the agent.
    pub(crate) fn launch(&mut self, command: Command) -> Result<&mut Agent, Failed> {
        self.agent = None;
        let agent = Agent::run(self.lab.node(1), command)?;
        Ok(self.agent.insert(agent))
    }

    pub(crate) fn agent(&mut self) -> Result<&mut Agent, Failed> {
        self.agent.as_mut().ok_or_else(|| "no agent is running".into())
    }

    /// Waits for a line of the agent's log that contains all of these texts, in any order. `ERROR`, `WARN` and `INFO`
    /// stand for the line's level.
    pub(crate) fn logged(&mut self, words: &[&str]) -> Result<String, Failed> {
        let wanted = format!("write a line with {words:?}");
        let has = |line: &str, word: &str| match word {
            "ERROR" | "WARN" | "INFO" => line_has_level(line, word),
            // Quotes within a quoted message are escaped.
            _ => line.contains(word) || line.contains(&word.replace('"', "\\\"")),
        };
        let matches = |line: &str| words.iter().all(|word| has(line, word));
        let line = self.agent()?.wait_until(&wanted, matches, wait_timeout())?;
        Ok(line)
    }

    /// Stops the agent with SIGTERM; it must exit with code 0.
    pub(crate) fn stop(&mut self) -> Result<Log, Failed> {
        let agent = self.agent.take().ok_or("no agent is running")?;
        let (status, log) = agent.terminate()?;
        ensure(status.code() == Some(0), || format!("the agent exited with {status}:\n{log}"))?;
        Ok(log)
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<(), Failed> {
        drop(self.agent.take().ok_or("no agent is running")?.kill());
        Ok(())
    }

    /// Runs a command on the node and waits for its end.
    pub(crate) fn run(&self, mut command: Command) -> Result<Output, Failed> {
        Ok(self.node().run(|| command.output())?)
    }

    /// Runs `portway` with these arguments on the node and waits for its end.
    pub(crate) fn portway<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Output, Failed> {
        let mut command = Command::new(PORTWAY);
        command.args(arguments);
        self.run(command)
    }

    /// Runs `nft` on the node, and returns its output; it must succeed.
    pub(crate) fn nft(&self, arguments: &[&str]) -> Result<String, Failed> {
        let mut command = Command::new("nft");
        command.args(arguments);
        let output = self.run(command)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || format!("nft {arguments:?}: {stderr}"))?;
        Ok(stdout)
    }

    /// Waits until both pods answer the client at the cluster IPs of `web`, in both families.
    pub(crate) fn web_works(&self) -> Outcome {
        WEB.iter().try_for_each(|ip| self.reaches(SocketAddr::new(*ip, 80), &["pod1a", "pod1b"]))
    }

    /// Waits until each of these pods, and no other, answers the client at an address.
    pub(crate) fn reaches(&self, to: SocketAddr, pods: &[&str]) -> Outcome {
        let wanted: BTreeSet<&str> = pods.iter().copied().collect();
        let probe = |count| {
            let outcome = Probe::tcp(self.client(), to).count(count).timeout(answer_timeout()).run();
            let servers = outcome.servers();
            let all = if count == 1 { servers.is_subset(&wanted) } else { servers == wanted };
            if all && outcome.all_answered() { Ok(()) } else { Err(format!("{to}: {outcome}")) }
        };
        eventually(wait_timeout(), || probe(1).and_then(|()| probe(8 + 16 * pods.len())))?;
        Ok(())
    }

    /// Waits until no pod answers the client at an address.
    pub(crate) fn reaches_no_pod(&self, to: SocketAddr) -> Outcome {
        let attempt = || {
            let outcome = Probe::tcp(self.client(), to).timeout(drop_timeout()).run();
            if outcome.answered() == 0 { Ok(()) } else { Err(format!("{to}: {outcome}")) }
        };
        eventually(wait_timeout(), attempt)?;
        Ok(())
    }

    /// A page of the health server, requested by the client.
    pub(crate) fn health(&self, path: &str) -> Result<Page, String> {
        Page::get(self.client(), SocketAddr::new(self.node_ips()[0], HEALTH_PORT), path)
    }

    /// A page of the status server, requested on the node.
    pub(crate) fn status(&self, path: &str) -> Result<Page, String> {
        Page::get(self.node(), STATUS, path)
    }

    /// The current metrics.
    pub(crate) fn metrics(&self) -> Result<Metrics, String> {
        Metrics::parse(&self.status("/metrics")?.body)
    }

    /// Waits until a metric meets a condition.
    pub(crate) fn metric(&self, series: &str, condition: impl Fn(f64) -> bool) -> Result<f64, Failed> {
        let value = eventually(wait_timeout(), || {
            let value = self.metrics()?.value(series);
            if condition(value) { Ok(value) } else { Err(format!("{series} is {value}")) }
        })?;
        Ok(value)
    }

    /// The end of the agent's log, for a test that fails.
    pub(crate) fn diagnostics(&self) -> String {
        self.agent.as_ref().map_or("no agent is running".to_owned(), |agent| agent.log().tail(40))
    }
}

/// The directory of a test, removed when dropped.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> TestDirectory {
        static DIRECTORIES: AtomicUsize = AtomicUsize::new(1);
        let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("agent-{}-{number}", std::process::id()));
        let created = std::fs::create_dir_all(path.join("manifests"));
        assert!(created.is_ok(), "create {}: {created:?}", path.display());
        TestDirectory(path)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
