//! An endpoint that leaves gets nothing new, and goes when what it has is over.

use super::{again, becomes, start, words};
use crate::agent_lab::{AgentLab, answer, patience};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Namespace, eventually};
use rustix::net::sockopt::set_socket_linger;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("a_removed_endpoint_drains_and_is_then_deleted", |world| drains(world, false)),
    ("a_service_without_endpoints_keeps_its_connections", last),
];
pub(crate) const SHORT_CUT: &[Test] = &[
    ("shortcut_connections_outlive_the_last_endpoint", short_cut),
    ("shortcut_connections_outlive_the_policy", policy),
];
pub(crate) const KILLED: &[Test] =
    &[("draining_is_completed_after_the_agent_was_killed", |world| drains(world, true))];

/// A connection that can end with a reset. After an orderly end the kernel would remember it for minutes.
struct Line {
    stream: BufReader<TcpStream>,
    /// Who answers.
    server: String,
}

impl Line {
    /// From the client.
    fn open(world: &AgentLab, to: &str) -> Result<Line, Failed> {
        Line::from(world.client(), to)
    }

    fn from(namespace: &Namespace, to: &str) -> Result<Line, Failed> {
        let to: SocketAddr = to.parse()?;
        let stream = namespace.run(|| TcpStream::connect_timeout(&to, answer()))?;
        stream.set_read_timeout(Some(answer()))?;
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        let mut stream = BufReader::new(stream);
        let mut greeting = String::new();
        stream.read_line(&mut greeting)?;
        let server = greeting.split(' ').next().unwrap_or_default().to_owned();
        Ok(Line { stream, server })
    }

    /// It still leads to whom it led to.
    fn is_alive(&mut self, when: &str) -> Outcome {
        let mut ask = || -> std::io::Result<String> {
            self.stream.get_mut().write_all(b"hello\n")?;
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            Ok(line)
        };
        let answer = ask();
        let right = answer.as_ref().is_ok_and(|a| *a == format!("{} hello\n", self.server));
        ensure(right, || format!("{when}: {answer:?} instead of {}", self.server))
    }

    /// Ends it at once.
    fn reset(self) {
        drop(self);
    }
}

const SERVER: &str = "TCP 10.96.0.80:80";

/// A new Service, and a connection to one of its two endpoints.
fn begin(world: &mut AgentLab) -> Result<Line, Failed> {
    world.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    endpoints(world, &["pod1a", "pod1b"]);
    start(world, &[])?;
    world.has_behind(SERVER, &[&real(world, "pod1a", 1), &real(world, "pod1b", 1)])?;
    becomes(|| world.bound(), |bound| bound.contains("10.96.0.80/32"))?;
    Line::open(world, "10.96.0.80:80")
}

fn endpoints(world: &AgentLab, pods: &[&str]) {
    let ips: Vec<_> = pods.iter().map(|pod| world.pod_ips(pod)[0]).collect();
    world.apply("late-slice.yaml", &objects::slice("late", "late", &ips));
}

/// How a pod is listed, with its weight.
fn real(world: &AgentLab, pod: &str, weight: u32) -> String {
    format!("{}:8080 Masq {weight}", world.pod_ips(pod)[0])
}

/// Restarts the agent without a farewell, if so wished.
fn interrupt(world: &mut AgentLab, killed: bool) -> Outcome {
    if killed {
        world.kill()?;
        again(world, &[])?;
        world.logged(&["synced", "family=IPv4"])?;
    }
    Ok(())
}

fn drains(world: &mut AgentLab, killed: bool) -> Outcome {
    let mut line = begin(world)?;
    let one = line.server.clone();
    let other = if one == "pod1a" { "pod1b" } else { "pod1a" };
    endpoints(world, &[other]);
    let drained = [real(world, &one, 0), real(world, other, 1)];
    let drained = [&*drained[0], &*drained[1]];
    world.has_behind(SERVER, &drained)?;
    line.is_alive("it left")?;
    world.reaches("10.96.0.80:80".parse()?, &[other])?;
    interrupt(world, killed)?;
    world.has_behind(SERVER, &drained)?;
    line.is_alive("it left some time ago")?;
    world.reaches("10.96.0.80:80".parse()?, &[other])?;
    // It comes back, and is as good as before.
    endpoints(world, &["pod1a", "pod1b"]);
    world.has_behind(SERVER, &[&real(world, &one, 1), &real(world, other, 1)])?;
    line.is_alive("it came back")?;
    interrupt(world, killed)?;
    world.has_behind(SERVER, &[&real(world, &one, 1), &real(world, other, 1)])?;
    endpoints(world, &[other]);
    world.has_behind(SERVER, &drained)?;
    interrupt(world, killed)?;
    line.is_alive("it left again")?;
    line.reset();
    // The kernel remembers a reset connection for ten seconds.
    world.has_behind(SERVER, &[&real(world, other, 1)])?;
    world.reaches("10.96.0.80:80".parse()?, &[other])
}

/// The last endpoint is removed: open connections stay, new ones are refused.
fn last(world: &mut AgentLab) -> Outcome {
    let mut line = begin(world)?;
    let one = line.server.clone();
    endpoints(world, &[]);
    // The other one has nothing to finish.
    world.has_behind(SERVER, &[&real(world, &one, 0)])?;
    line.is_alive("nobody serves any more")?;
    refused(world)?;
    world.kill()?;
    again(world, &[])?;
    world.logged(&["synced", "family=IPv4"])?;
    world.has_behind(SERVER, &[&real(world, &one, 0)])?;
    line.is_alive("after a restart")?;
    refused(world)?;
    line.reset();
    becomes(|| world.servers(), |servers| !servers.keys().any(|name| name.starts_with(SERVER)))?;
    refused(world)?;
    endpoints(world, &["pod1b"]);
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])
}

/// Who knows a pod's network takes the short cut.
const CIDR: &str = "--cluster-cidr=10.244.0.0/16,fd10:244::/32";
const NODE_PORT: &str = "192.168.50.11:30003";

fn late_with_policy(world: &AgentLab, policy: &str) {
    let spec = format!("type: NodePort\nexternalTrafficPolicy: {policy}");
    let late = objects::service("late", "10.96.0.80", &spec);
    world.apply("late.yaml", &late.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30003"));
}

/// Connections from a pod and from the node itself to a node port with policy Local: both take the short cut.
fn by_the_short_cut(world: &mut AgentLab) -> Result<Vec<Line>, Failed> {
    late_with_policy(world, "Local");
    endpoints(world, &["pod1b"]);
    start(world, &[CIDR])?;
    world.has_behind("FWM 4096", &[&real(world, "pod1b", 1)])?;
    let open = |from| eventually(patience(), || Line::from(from, NODE_PORT).map_err(words));
    Ok(vec![open(world.pod("pod1a"))?, open(world.node())?])
}

fn are_alive(lines: &mut [Line], when: &str) -> Outcome {
    lines.iter_mut().try_for_each(|line| line.is_alive(when))
}

fn short_cut(world: &mut AgentLab) -> Outcome {
    let mut lines = by_the_short_cut(world)?;
    endpoints(world, &[]);
    world.has_behind("FWM 4096", &[&real(world, "pod1b", 0)])?;
    are_alive(&mut lines, "nobody serves any more")?;
    for from in [world.pod("pod1a"), world.node(), world.client()] {
        refused_to(from, NODE_PORT)?;
    }
    world.kill()?;
    again(world, &[CIDR])?;
    world.logged(&["synced", "family=IPv4", "full=true"])?;
    world.has_behind("FWM 4096", &[&real(world, "pod1b", 0)])?;
    are_alive(&mut lines, "after a restart")?;
    lines.into_iter().for_each(Line::reset);
    let without = |world: &AgentLab| {
        becomes(|| world.servers(), |servers| !servers.keys().any(|name| name.starts_with("FWM"))).map(drop)
    };
    without(world)?;
    refused_to(world.pod("pod1a"), NODE_PORT)?;
    endpoints(world, &["pod1b"]);
    world.has_behind("FWM 4096", &[&real(world, "pod1b", 1)])?;
    eventually(patience(), || Line::from(world.pod("pod1a"), NODE_PORT).map_err(words))?.is_alive("again")
}

fn policy(world: &mut AgentLab) -> Outcome {
    let mut lines = by_the_short_cut(world)?;
    late_with_policy(world, "Cluster");
    world.has_behind("FWM 4096", &[&real(world, "pod1b", 0)])?;
    are_alive(&mut lines, "the policy is Cluster")?;
    // Comparing everything makes no difference.
    world.on_node("ipset flush KUBE-CLUSTER-IP")?;
    world.logged(&["repaired rules that another process had changed", "KUBE-CLUSTER-IP is missing"])?;
    world.has_behind("FWM 4096", &[&real(world, "pod1b", 0)])?;
    are_alive(&mut lines, "after a repair")?;
    let mut new = eventually(patience(), || Line::from(world.pod("pod1a"), NODE_PORT).map_err(words))?;
    new.is_alive("a new one")?;
    lines.into_iter().for_each(Line::reset);
    becomes(|| world.servers(), |servers| !servers.keys().any(|name| name.starts_with("FWM")))?;
    new.is_alive("when the others are gone")
}

fn refused(world: &AgentLab) -> Outcome {
    refused_to(world.client(), "10.96.0.80:80")
}

fn refused_to(from: &Namespace, to: &str) -> Outcome {
    let to = to.parse()?;
    eventually(patience(), || {
        let outcome = portway_lab::Probe::tcp(&from, to).count(4).timeout(answer()).run();
        if outcome.all_refused() { Ok(()) } else { Err(outcome.to_string()) }
    })?;
    Ok(())
}
