//! Pods fail, and clients do not notice.

use super::{open, start};
use crate::agent_lab::{AgentLab, WEB, patience};
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Load, Probe, eventually};
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("a_pod_that_refuses_under_load_fails_no_connection", refuses),
    ("a_pod_that_is_cut_off_under_load_fails_no_connection", cut_off),
    ("the_only_pod_gets_more_time_to_accept", waited_for),
    ("a_connection_that_no_pod_accepts_is_reset_and_counted", no_pod),
    ("metrics_count_each_service", counted),
    ("an_endpoint_that_is_the_service_itself_makes_no_loop", in_circles),
    ("connections_of_a_removed_endpoint_end_after_the_drain_timeout", drained),
];

const SERIES: &str = r#"{namespace="default",service="NAME",port="",protocol="TCP",ip_family="FAMILY"}"#;

fn series(metric: &str, service: &str, family: &str) -> String {
    format!("portway_userspace_{metric}{}", SERIES.replace("NAME", service).replace("FAMILY", family))
}

fn web(family: usize) -> SocketAddr {
    SocketAddr::new(WEB[family], 80)
}

/// The pod rejects new connections, while its endpoint is still ready.
fn refuses(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    let load = [0, 1].map(|family| Load::start(world.client(), web(family), 100.0));
    std::thread::sleep(Duration::from_millis(300));
    // New connections only: those that the pod has accepted and not answered would be lost with it.
    world.in_pod("pod1a", "nft add table inet dead")?;
    world.in_pod("pod1a", "nft add chain inet dead in { type filter hook input priority 0 ; }")?;
    world
        .in_pod("pod1a", "nft add rule inet dead in tcp dport 8080 tcp flags == syn reject with tcp reset")?;
    world.metric(&series("retries_total", "web", "IPv4"), |retries| retries >= 3.0)?;
    world.metric(&series("retries_total", "web", "IPv6"), |retries| retries >= 3.0)?;
    for (family, load) in ["IPv4", "IPv6"].into_iter().zip(load) {
        let report = load.stop();
        ensure(report.is_clean(), || format!("{family}: {report}"))?;
        let failures = world.metrics()?.value(&series("failures_total", "web", family));
        ensure(failures == 0.0, || format!("{failures} failures in {family}"))?;
    }
    // The pod accepts again, and gets connections again.
    world.in_pod("pod1a", "nft delete table inet dead")?;
    world.web_works()
}

/// The pod drops new connections: nothing answers at its address.
fn cut_off(world: &mut AgentLab) -> Outcome {
    start(world, &["--userspace-connect-timeout=300ms"])?;
    world.web_works()?;
    let load = Load::start(world.pod("pod1b"), web(0), 50.0);
    std::thread::sleep(Duration::from_millis(300));
    world.in_pod("pod1a", "nft add table inet dead")?;
    world.in_pod("pod1a", "nft add chain inet dead in { type filter hook input priority 0 ; }")?;
    world.in_pod("pod1a", "nft add rule inet dead in tcp dport 8080 tcp flags == syn drop")?;
    world.metric(&series("retries_total", "web", "IPv4"), |retries| retries >= 5.0)?;
    let report = load.stop();
    ensure(report.is_clean(), || report.to_string())?;
    // It is ejected: hardly any of the next connections tries it.
    let before = world.metrics()?.value(&series("retries_total", "web", "IPv4"));
    let outcome = Probe::tcp(world.client(), web(0)).count(100).timeout(Duration::from_secs(2)).run();
    ensure(outcome.all_answered(), || outcome.to_string())?;
    let after = world.metrics()?.value(&series("retries_total", "web", "IPv4"));
    ensure(after - before < 20.0, || format!("{before} retries, then {after}"))
}

/// Packets to the pod are lost for a while.
fn waited_for(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1a")[..1]));
    world.reaches(web(0), &["pod1a"])?;
    world.in_pod("pod1a", "nft add table inet lossy")?;
    world.in_pod("pod1a", "nft add chain inet lossy in { type filter hook input priority 0 ; }")?;
    world.in_pod("pod1a", "nft add rule inet lossy in tcp dport 8080 tcp flags == syn drop")?;
    let asked = std::thread::scope(|scope| {
        let client = world.client();
        let asked = scope.spawn(|| Probe::tcp(client, web(0)).timeout(Duration::from_secs(8)).run());
        // Longer than the connect time-out, which holds where there are other endpoints.
        std::thread::sleep(Duration::from_millis(1500));
        world.in_pod("pod1a", "nft delete table inet lossy").map(|()| asked.join())
    })?;
    let outcome = asked.map_err(|_| "the client panicked")?;
    ensure(outcome.all_answered(), || outcome.to_string())
}

fn no_pod(world: &mut AgentLab) -> Outcome {
    world.apply("dead.yaml", &objects::service("dead", "10.96.0.50", ""));
    let nowhere = ["10.244.1.200", "10.244.1.201"].map(|ip| ip.parse().expect("an address"));
    let slice = objects::slice("dead", "dead", &world.pod_ips("pod1a")[..1]).replace("port: 8080", "port: 9");
    world.apply("dead-slice.yaml", &slice);
    world.apply("void.yaml", &objects::service("void", "10.96.0.51", ""));
    world.apply("void-slice.yaml", &objects::slice("void", "void", &nowhere));
    start(world, &["--userspace-connect-timeout=200ms"])?;
    world.web_works()?;
    for (to, service) in [("10.96.0.50:80", "dead"), ("10.96.0.51:80", "void")] {
        let outcome = Probe::tcp(world.client(), to.parse()?).timeout(Duration::from_secs(3)).run();
        ensure(outcome.answered() == 0 && !outcome.all_timed_out(), || format!("{service}: {outcome}"))?;
        world.metric(&series("failures_total", service, "IPv4"), |n| n >= 1.0)?;
    }
    let tried = world.metrics()?.value(&series("retries_total", "void", "IPv4"));
    ensure(tried >= 1.0, || format!("{tried} retries"))
}

fn counted(world: &mut AgentLab) -> Outcome {
    start(world, &[])?;
    world.web_works()?;
    // The connections of the check above have ended.
    world.metric(&series("connections_open", "web", "IPv4"), |open| open == 0.0)?;
    let before = world.metrics()?;
    let mut conversation = open(world, web(0))?;
    conversation.ask(&"x".repeat(1000)).map_err(|e| e.to_string())?;
    let grew = |metric: &str, least: f64, most: f64| {
        let name = series(metric, "web", "IPv4");
        world.metric(&name, |now| (least..=most).contains(&(now - before.value(&name))))
    };
    grew("connections_total", 1.0, 1.0)?;
    world.metric(&series("connections_open", "web", "IPv4"), |open| open == 1.0)?;
    grew("received_bytes_total", 1000.0, 1100.0)?;
    grew("sent_bytes_total", 1000.0, 1400.0)?;
    grew("connect_duration_seconds_count", 1.0, 1.0)?;
    drop(conversation);
    world.metric(&series("connections_open", "web", "IPv4"), |open| open == 0.0)?;
    let metrics = world.metrics()?;
    let name = series("connect_duration_seconds_bucket", "web", "IPv4").replace('}', ",le=\"5\"}");
    ensure(metrics.value(&name) > 0.0, || format!("{name} is 0"))?;
    ensure(metrics.kind("portway_userspace_connect_duration_seconds") == "histogram", || {
        "no histogram".into()
    })
}

/// A Service that is its own endpoint, at its cluster IP and at its node port.
fn in_circles(world: &mut AgentLab) -> Outcome {
    world.apply("circle.yaml", &objects::service("circle", "10.96.0.60", ""));
    let own = ["10.96.0.60".parse()?];
    world.apply(
        "circle-slice.yaml",
        &objects::slice("circle", "circle", &own).replace("port: 8080", "port: 80"),
    );
    let port = "type: NodePort\n";
    let node = objects::service("round", "10.96.0.61", port)
        .replace("protocol: TCP", "protocol: TCP\n    nodePort: 30061");
    world.apply("round.yaml", &node);
    let own = &world.node_ips()[..1];
    world.apply(
        "round-slice.yaml",
        &objects::slice("round", "round", own).replace("port: 8080", "port: 30061"),
    );
    start(world, &[])?;
    world.web_works()?;
    let number = super::relay(world)?;
    for (to, service) in [("10.96.0.60:80", "circle"), ("10.96.0.61:80", "round")] {
        let outcome = Probe::tcp(world.client(), to.parse()?).count(3).timeout(Duration::from_secs(2)).run();
        ensure(outcome.answered() == 0 && !outcome.all_timed_out(), || format!("{service}: {outcome}"))?;
        world.metric(&series("failures_total", service, "IPv4"), |n| n >= 3.0)?;
        let came = world.metrics()?.value(&series("connections_total", service, "IPv4"));
        ensure(came == 3.0, || format!("{came} connections were accepted for {service}"))?;
    }
    let few = || match std::fs::read_dir(super::process(number).join("fd")).map(Iterator::count) {
        Ok(open) if open < 60 => Ok(()),
        other => Err(format!("descriptors: {other:?}")),
    };
    Ok(eventually(patience(), few)?)
}

fn drained(world: &mut AgentLab) -> Outcome {
    start(world, &["--userspace-drain-timeout=5s"])?;
    world.web_works()?;
    let slice = |pod: &str| objects::slice("web", "web-v4", &world.pod_ips(pod)[..1]);
    let (first, second) = (slice("pod1a"), slice("pod1b"));
    world.apply("web-v4.yaml", &first);
    world.reaches(web(0), &["pod1a"])?;
    let mut conversation = open(world, web(0))?;
    world.apply("web-v4.yaml", &second);
    world.reaches(web(0), &["pod1b"])?;
    ensure(conversation.ask("still there?").is_ok(), || "the connection ended with its endpoint".to_owned())?;
    // An endpoint that is added again in time keeps its connections.
    world.apply("web-v4.yaml", &first);
    world.reaches(web(0), &["pod1a"])?;
    std::thread::sleep(Duration::from_millis(6500));
    ensure(conversation.ask("still there?").is_ok(), || {
        "the connection ended though its endpoint is back".to_owned()
    })?;
    world.apply("web-v4.yaml", &second);
    let over = || conversation.ask("still there?").err().ok_or("the connection goes on");
    eventually(patience(), over)?;
    Ok(())
}
