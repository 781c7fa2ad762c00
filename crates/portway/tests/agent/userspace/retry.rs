//! Retries: a pod that fails does not fail the connections of clients.

use super::{open, start};
use crate::agent_lab::{AgentLab, WEB, wait_timeout};
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Load, Probe, eventually};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("a_pod_that_refuses_under_load_fails_no_connection", refusing_pod),
    ("a_pod_that_is_cut_off_under_load_fails_no_connection", dropping_pod),
    ("the_only_pod_gets_more_time_to_accept", only_pod),
    ("a_connection_that_no_pod_accepts_is_reset_and_counted", no_pod),
    ("metrics_count_each_service", metrics),
    ("an_endpoint_that_is_the_service_itself_makes_no_loop", own_endpoint),
    ("connections_of_a_removed_endpoint_end_after_the_drain_timeout", drain_timeout),
];

const SERIES: &str = r#"{namespace="default",service="NAME",port="",protocol="TCP",ip_family="FAMILY"}"#;

fn series(metric: &str, service: &str, family: &str) -> String {
    format!("portway_userspace_{metric}{}", SERIES.replace("NAME", service).replace("FAMILY", family))
}

fn web(family: usize) -> SocketAddr {
    SocketAddr::new(WEB[family], 80)
}

/// The pod rejects new connections, while its endpoint is still ready.
fn refusing_pod(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    // A SYN before the first sync would leave a conntrack entry without NAT, for a later connection from the same port.
    lab.logged(&["synced", "Services"])?;
    lab.web_works()?;
    let load = [0, 1].map(|family| Load::start(lab.client(), web(family), 100.0));
    std::thread::sleep(Duration::from_millis(300));
    // Only new connections are rejected: those that the pod has accepted and not answered cannot be retried.
    lab.in_pod("pod1a", "nft add table inet dead")?;
    lab.in_pod("pod1a", "nft add chain inet dead in { type filter hook input priority 0 ; }")?;
    lab.in_pod("pod1a", "nft add rule inet dead in tcp dport 8080 tcp flags == syn reject with tcp reset")?;
    lab.metric(&series("retries_total", "web", "IPv4"), |retries| retries >= 3.0)?;
    lab.metric(&series("retries_total", "web", "IPv6"), |retries| retries >= 3.0)?;
    for (family, load) in ["IPv4", "IPv6"].into_iter().zip(load) {
        let report = load.stop();
        ensure(report.is_clean(), || format!("{family}: {report}"))?;
        let failures = lab.metrics()?.value(&series("failures_total", "web", family));
        ensure(failures == 0.0, || format!("{failures} failures in {family}"))?;
    }
    // The pod accepts again, and gets connections again.
    lab.in_pod("pod1a", "nft delete table inet dead")?;
    lab.web_works()
}

/// The pod drops new connections: nothing answers at its address.
fn dropping_pod(lab: &mut AgentLab) -> Outcome {
    start(lab, &["--userspace-connect-timeout=300ms"])?;
    lab.web_works()?;
    let load = Load::start(lab.pod("pod1b"), web(0), 50.0);
    std::thread::sleep(Duration::from_millis(300));
    lab.in_pod("pod1a", "nft add table inet dead")?;
    lab.in_pod("pod1a", "nft add chain inet dead in { type filter hook input priority 0 ; }")?;
    lab.in_pod("pod1a", "nft add rule inet dead in tcp dport 8080 tcp flags == syn drop")?;
    lab.metric(&series("retries_total", "web", "IPv4"), |retries| retries >= 5.0)?;
    let report = load.stop();
    ensure(report.is_clean(), || report.to_string())?;
    // The endpoint is ejected: the relay tries it for few of the next connections.
    let before = lab.metrics()?.value(&series("retries_total", "web", "IPv4"));
    let outcome = Probe::tcp(lab.client(), web(0)).count(100).timeout(Duration::from_secs(2)).run();
    ensure(outcome.all_answered(), || outcome.to_string())?;
    let after = lab.metrics()?.value(&series("retries_total", "web", "IPv4"));
    ensure(after - before < 20.0, || format!("{before} retries, then {after}"))
}

/// Packets to the pod are lost for a while.
fn only_pod(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1a")[..1]));
    lab.reaches(web(0), &["pod1a"])?;
    lab.in_pod("pod1a", "nft add table inet lossy")?;
    lab.in_pod("pod1a", "nft add chain inet lossy in { type filter hook input priority 0 ; }")?;
    lab.in_pod("pod1a", "nft add rule inet lossy in tcp dport 8080 tcp flags == syn drop")?;
    let asked = std::thread::scope(|scope| {
        let client = lab.client();
        let asked = scope.spawn(|| Probe::tcp(client, web(0)).timeout(Duration::from_secs(8)).run());
        // Longer than the connect timeout, which applies only if there are other endpoints.
        std::thread::sleep(Duration::from_millis(1500));
        lab.in_pod("pod1a", "nft delete table inet lossy").map(|()| asked.join())
    })?;
    let outcome = asked.map_err(|_| "the client panicked")?;
    ensure(outcome.all_answered(), || outcome.to_string())
}

fn no_pod(lab: &mut AgentLab) -> Outcome {
    lab.apply("dead.yaml", &objects::service("dead", "10.96.0.50", ""));
    let nowhere = ["10.244.1.200", "10.244.1.201"].map(|ip| ip.parse().expect("valid addresses"));
    let slice = objects::slice("dead", "dead", &lab.pod_ips("pod1a")[..1]).replace("port: 8080", "port: 9");
    lab.apply("dead-slice.yaml", &slice);
    lab.apply("void.yaml", &objects::service("void", "10.96.0.51", ""));
    lab.apply("void-slice.yaml", &objects::slice("void", "void", &nowhere));
    start(lab, &["--userspace-connect-timeout=200ms"])?;
    lab.web_works()?;
    for (to, service) in [("10.96.0.50:80", "dead"), ("10.96.0.51:80", "void")] {
        let outcome = Probe::tcp(lab.client(), to.parse()?).timeout(Duration::from_secs(3)).run();
        ensure(outcome.answered() == 0 && !outcome.all_timed_out(), || format!("{service}: {outcome}"))?;
        lab.metric(&series("failures_total", service, "IPv4"), |n| n >= 1.0)?;
    }
    let retries = lab.metrics()?.value(&series("retries_total", "void", "IPv4"));
    ensure(retries >= 1.0, || format!("{retries} retries"))
}

fn metrics(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    lab.web_works()?;
    // The connections of the check above have ended.
    lab.metric(&series("connections_open", "web", "IPv4"), |open| open == 0.0)?;
    let before = lab.metrics()?;
    let mut conversation = open(lab, web(0))?;
    conversation.ask(&"x".repeat(1000)).map_err(|e| e.to_string())?;
    let grew = |metric: &str, least: f64, most: f64| {
        let name = series(metric, "web", "IPv4");
        lab.metric(&name, |now| (least..=most).contains(&(now - before.value(&name))))
    };
    grew("connections_total", 1.0, 1.0)?;
    lab.metric(&series("connections_open", "web", "IPv4"), |open| open == 1.0)?;
    grew("received_bytes_total", 1000.0, 1100.0)?;
    grew("sent_bytes_total", 1000.0, 1400.0)?;
    grew("connect_duration_seconds_count", 1.0, 1.0)?;
    drop(conversation);
    lab.metric(&series("connections_open", "web", "IPv4"), |open| open == 0.0)?;
    let metrics = lab.metrics()?;
    let name = series("connect_duration_seconds_bucket", "web", "IPv4").replace('}', ",le=\"5\"}");
    ensure(metrics.value(&name) > 0.0, || format!("{name} is 0"))?;
    ensure(metrics.kind("portway_userspace_connect_duration_seconds") == "histogram", || {
        "no histogram".into()
    })
}

/// A Service that is its own endpoint, at its cluster IP and at its node port.
fn own_endpoint(lab: &mut AgentLab) -> Outcome {
    lab.apply("own-cluster-ip.yaml", &objects::service("own-cluster-ip", "10.96.0.60", ""));
    let own = ["10.96.0.60".parse()?];
    lab.apply(
        "own-cluster-ip-slice.yaml",
        &objects::slice("own-cluster-ip", "own-cluster-ip", &own).replace("port: 8080", "port: 80"),
    );
    let port = "type: NodePort\n";
    let node = objects::service("own-node-port", "10.96.0.61", port)
        .replace("protocol: TCP", "protocol: TCP\n    nodePort: 30061");
    lab.apply("own-node-port.yaml", &node);
    let own = &lab.node_ips()[..1];
    lab.apply(
        "own-node-port-slice.yaml",
        &objects::slice("own-node-port", "own-node-port", own).replace("port: 8080", "port: 30061"),
    );
    start(lab, &[])?;
    lab.web_works()?;
    let pid = super::relay(lab)?;
    for (to, service) in [("10.96.0.60:80", "own-cluster-ip"), ("10.96.0.61:80", "own-node-port")] {
        let outcome = Probe::tcp(lab.client(), to.parse()?).count(3).timeout(Duration::from_secs(2)).run();
        ensure(outcome.answered() == 0 && !outcome.all_timed_out(), || format!("{service}: {outcome}"))?;
        lab.metric(&series("failures_total", service, "IPv4"), |n| n >= 3.0)?;
        let accepted = lab.metrics()?.value(&series("connections_total", service, "IPv4"));
        ensure(accepted == 3.0, || format!("{accepted} connections were accepted for {service}"))?;
    }
    let few = || match std::fs::read_dir(super::process(pid).join("fd")).map(Iterator::count) {
        Ok(open) if open < 60 => Ok(()),
        other => Err(format!("descriptors: {other:?}")),
    };
    Ok(eventually(wait_timeout(), few)?)
}

fn drain_timeout(lab: &mut AgentLab) -> Outcome {
    start(lab, &["--userspace-drain-timeout=5s"])?;
    lab.web_works()?;
    let slice = |pod: &str| objects::slice("web", "web-v4", &lab.pod_ips(pod)[..1]);
    let (first, second) = (slice("pod1a"), slice("pod1b"));
    lab.apply("web-v4.yaml", &first);
    lab.reaches(web(0), &["pod1a"])?;
    let mut conversation = open(lab, web(0))?;
    lab.apply("web-v4.yaml", &second);
    lab.reaches(web(0), &["pod1b"])?;
    ensure(conversation.ask("still there?").is_ok(), || {
        "the connection ended before the drain timeout".to_owned()
    })?;
    // An endpoint that is added again before the timeout keeps its connections.
    lab.apply("web-v4.yaml", &first);
    lab.reaches(web(0), &["pod1a"])?;
    std::thread::sleep(Duration::from_millis(6500));
    ensure(conversation.ask("still there?").is_ok(), || {
        "the connection ended though its endpoint was added again".to_owned()
    })?;
    lab.apply("web-v4.yaml", &second);
    let over = || conversation.ask("still there?").err().ok_or("the connection is still open");
    eventually(wait_timeout(), over)?;
    Ok(())
}
