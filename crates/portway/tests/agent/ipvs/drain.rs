//! A removed endpoint gets no new connections, and is deleted when its last connection has ended.

use super::{message, start, start_again, wait_until};
use crate::agent_lab::{AgentLab, answer_timeout, wait_timeout};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Namespace, eventually};
use rustix::net::sockopt::set_socket_linger;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("a_removed_endpoint_drains_and_is_then_deleted", |lab| drains(lab, false)),
    ("a_service_without_endpoints_keeps_its_connections", no_endpoints),
];
pub(crate) const SHORTCUT: &[Test] = &[
    ("shortcut_connections_stay_open_without_endpoints", shortcut_without_endpoints),
    ("shortcut_connections_stay_open_after_a_policy_change", policy_change),
];
pub(crate) const KILLED: &[Test] =
    &[("draining_is_completed_after_the_agent_was_killed", |lab| drains(lab, true))];

/// A connection that ends with a reset. After an orderly end the kernel would keep its entry for minutes.
struct Connection {
    stream: BufReader<TcpStream>,
    /// The pod that answers.
    server: String,
}

impl Connection {
    /// Opens a connection from the client.
    fn open(lab: &AgentLab, to: &str) -> Result<Connection, Failed> {
        Connection::from(lab.client(), to)
    }

    fn from(namespace: &Namespace, to: &str) -> Result<Connection, Failed> {
        let to: SocketAddr = to.parse()?;
        let stream = namespace.run(|| TcpStream::connect_timeout(&to, answer_timeout()))?;
        stream.set_read_timeout(Some(answer_timeout()))?;
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        let mut stream = BufReader::new(stream);
        let mut greeting = String::new();
        stream.read_line(&mut greeting)?;
        let server = greeting.split(' ').next().unwrap_or_default().to_owned();
        Ok(Connection { stream, server })
    }

    /// Checks that the same pod still answers.
    fn is_alive(&mut self, when: &str) -> Outcome {
        let mut ask = || -> std::io::Result<String> {
            self.stream.get_mut().write_all(b"hello\n")?;
            let mut answer = String::new();
            self.stream.read_line(&mut answer)?;
            Ok(answer)
        };
        let answer = ask();
        let right = answer.as_ref().is_ok_and(|a| *a == format!("{} hello\n", self.server));
        ensure(right, || format!("{when}: {answer:?} instead of {}", self.server))
    }

    /// Ends the connection with a reset.
    fn reset(self) {
        drop(self);
    }
}

const SERVER: &str = "TCP 10.96.0.80:80";

/// A new Service, and a connection to one of its two endpoints.
fn begin(lab: &mut AgentLab) -> Result<Connection, Failed> {
    lab.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    endpoints(lab, &["pod1a", "pod1b"]);
    start(lab, &[])?;
    lab.has_real_servers(SERVER, &[&real(lab, "pod1a", 1), &real(lab, "pod1b", 1)])?;
    wait_until(|| lab.bound(), |bound| bound.contains("10.96.0.80/32"))?;
    Connection::open(lab, "10.96.0.80:80")
}

fn endpoints(lab: &AgentLab, pods: &[&str]) {
    let ips: Vec<_> = pods.iter().map(|pod| lab.pod_ips(pod)[0]).collect();
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &ips));
}

/// A pod as a real server with a weight.
fn real(lab: &AgentLab, pod: &str, weight: u32) -> String {
    format!("{}:8080 Masq {weight}", lab.pod_ips(pod)[0])
}

/// Kills and restarts the agent, if `killed`.
fn interrupt(lab: &mut AgentLab, killed: bool) -> Outcome {
    if killed {
        lab.kill()?;
        start_again(lab, &[])?;
        lab.logged(&["synced", "family=\"IPv4\""])?;
    }
    Ok(())
}

fn drains(lab: &mut AgentLab, killed: bool) -> Outcome {
    let mut connection = begin(lab)?;
    let one = connection.server.clone();
    let other = if one == "pod1a" { "pod1b" } else { "pod1a" };
    endpoints(lab, &[other]);
    let drained = [real(lab, &one, 0), real(lab, other, 1)];
    let drained = [&*drained[0], &*drained[1]];
    lab.has_real_servers(SERVER, &drained)?;
    connection.is_alive("after its endpoint was removed")?;
    lab.reaches("10.96.0.80:80".parse()?, &[other])?;
    interrupt(lab, killed)?;
    lab.has_real_servers(SERVER, &drained)?;
    connection.is_alive("while its endpoint drains")?;
    lab.reaches("10.96.0.80:80".parse()?, &[other])?;
    // The endpoint is added again, and gets its weight back.
    endpoints(lab, &["pod1a", "pod1b"]);
    lab.has_real_servers(SERVER, &[&real(lab, &one, 1), &real(lab, other, 1)])?;
    connection.is_alive("after its endpoint was added again")?;
    interrupt(lab, killed)?;
    lab.has_real_servers(SERVER, &[&real(lab, &one, 1), &real(lab, other, 1)])?;
    endpoints(lab, &[other]);
    lab.has_real_servers(SERVER, &drained)?;
    interrupt(lab, killed)?;
    connection.is_alive("after its endpoint was removed again")?;
    connection.reset();
    // The kernel keeps the entry of a reset connection for ten seconds.
    lab.has_real_servers(SERVER, &[&real(lab, other, 1)])?;
    lab.reaches("10.96.0.80:80".parse()?, &[other])
}

/// The last endpoint is removed: open connections stay, new ones are refused.
fn no_endpoints(lab: &mut AgentLab) -> Outcome {
    let mut connection = begin(lab)?;
    let one = connection.server.clone();
    endpoints(lab, &[]);
    // The other endpoint has no connections.
    lab.has_real_servers(SERVER, &[&real(lab, &one, 0)])?;
    connection.is_alive("without endpoints")?;
    refused(lab)?;
    lab.kill()?;
    start_again(lab, &[])?;
    lab.logged(&["synced", "family=\"IPv4\""])?;
    lab.has_real_servers(SERVER, &[&real(lab, &one, 0)])?;
    connection.is_alive("after a restart")?;
    refused(lab)?;
    connection.reset();
    wait_until(|| lab.servers(), |servers| !servers.keys().any(|name| name.starts_with(SERVER)))?;
    refused(lab)?;
    endpoints(lab, &["pod1b"]);
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])
}

/// Connections of pods take the shortcut only if the cluster CLUSTER_CIDR is known.
const CLUSTER_CIDR: &str = "--cluster-cidr=10.244.0.0/16,fd10:244::/32";
const NODE_PORT: &str = "192.168.50.11:30003";

fn late_with_policy(lab: &AgentLab, policy: &str) {
    let spec = format!("type: NodePort\nexternalTrafficPolicy: {policy}");
    let late = objects::service("late", "10.96.0.80", &spec);
    lab.apply("late.yaml", &late.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30003"));
}

/// Connections from a pod and from the node itself to a node port with policy Local: both take the local shortcut.
fn shortcut_connections(lab: &mut AgentLab) -> Result<Vec<Connection>, Failed> {
    late_with_policy(lab, "Local");
    endpoints(lab, &["pod1b"]);
    start(lab, &[CLUSTER_CIDR])?;
    lab.has_real_servers("FWM 4096", &[&real(lab, "pod1b", 1)])?;
    let open = |from| eventually(wait_timeout(), || Connection::from(from, NODE_PORT).map_err(message));
    Ok(vec![open(lab.pod("pod1a"))?, open(lab.node())?])
}

fn are_alive(connections: &mut [Connection], when: &str) -> Outcome {
    connections.iter_mut().try_for_each(|connection| connection.is_alive(when))
}

fn shortcut_without_endpoints(lab: &mut AgentLab) -> Outcome {
    let mut connections = shortcut_connections(lab)?;
    endpoints(lab, &[]);
    lab.has_real_servers("FWM 4096", &[&real(lab, "pod1b", 0)])?;
    are_alive(&mut connections, "without endpoints")?;
    for from in [lab.pod("pod1a"), lab.node(), lab.client()] {
        refused_to(from, NODE_PORT)?;
    }
    lab.kill()?;
    start_again(lab, &[CLUSTER_CIDR])?;
    lab.logged(&["synced", "family=\"IPv4\"", "full=true"])?;
    lab.has_real_servers("FWM 4096", &[&real(lab, "pod1b", 0)])?;
    are_alive(&mut connections, "after a restart")?;
    connections.into_iter().for_each(Connection::reset);
    let no_marks = |lab: &AgentLab| {
        wait_until(|| lab.servers(), |servers| !servers.keys().any(|name| name.starts_with("FWM"))).map(drop)
    };
    no_marks(lab)?;
    refused_to(lab.pod("pod1a"), NODE_PORT)?;
    endpoints(lab, &["pod1b"]);
    lab.has_real_servers("FWM 4096", &[&real(lab, "pod1b", 1)])?;
    eventually(wait_timeout(), || Connection::from(lab.pod("pod1a"), NODE_PORT).map_err(message))?
        .is_alive("again")
}

fn policy_change(lab: &mut AgentLab) -> Outcome {
    let mut connections = shortcut_connections(lab)?;
    late_with_policy(lab, "Cluster");
    lab.has_real_servers("FWM 4096", &[&real(lab, "pod1b", 0)])?;
    are_alive(&mut connections, "after the policy became Cluster")?;
    // A full comparison does not remove the server either.
    lab.on_node("ipset flush KUBE-CLUSTER-IP")?;
    lab.logged(&["repaired rules that another process had changed", "KUBE-CLUSTER-IP is missing"])?;
    lab.has_real_servers("FWM 4096", &[&real(lab, "pod1b", 0)])?;
    are_alive(&mut connections, "after a repair")?;
    let mut new =
        eventually(wait_timeout(), || Connection::from(lab.pod("pod1a"), NODE_PORT).map_err(message))?;
    new.is_alive("a new connection")?;
    connections.into_iter().for_each(Connection::reset);
    wait_until(|| lab.servers(), |servers| !servers.keys().any(|name| name.starts_with("FWM")))?;
    new.is_alive("after the other connections ended")
}

fn refused(lab: &AgentLab) -> Outcome {
    refused_to(lab.client(), "10.96.0.80:80")
}

fn refused_to(from: &Namespace, to: &str) -> Outcome {
    let to = to.parse()?;
    eventually(wait_timeout(), || {
        let outcome = portway_lab::Probe::tcp(&from, to).count(4).timeout(answer_timeout()).run();
        if outcome.all_refused() { Ok(()) } else { Err(outcome.to_string()) }
    })?;
    Ok(())
}
