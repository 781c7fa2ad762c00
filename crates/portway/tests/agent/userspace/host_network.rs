//! Pods with host networking: an endpoint may have the address and port of a frontend, as with an ingress controller.

use super::start;
use crate::agent_lab::{AgentLab, answer_timeout, wait_timeout};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Port, Probe, Protocol, Server, eventually};
use std::net::{IpAddr, SocketAddr};

pub(super) const TESTS: &[Test] = &[("an_endpoint_may_have_the_address_of_a_frontend", same_port)];

/// The port of two of the Services and of their endpoints, and the node port of the third.
const PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;

/// Applies Services whose endpoint has the address and port of one of their frontends.
fn apply(lab: &AgentLab, node: IpAddr) {
    let load_balancer = format!(
        "type: LoadBalancer\nallocateLoadBalancerNodePorts: false\nloadBalancerSourceRanges: ['{CLIENT}/32']"
    );
    let tcp = objects::service("tcp", "10.96.0.90", &load_balancer).replace("port: 80", "port: 8080");
    lab.apply("tcp.yaml", &format!("{tcp}status:\n  loadBalancer:\n    ingress: [{{ip: '{node}'}}]\n"));
    lab.apply("tcp-slice.yaml", &objects::slice("tcp", "tcp", &[node]));
    let udp = objects::service("udp", "10.96.0.91", &format!("externalIPs: ['{node}']"));
    let udp = udp.replace("port: 80\n    protocol: TCP", "name: udp\n    port: 8080\n    protocol: UDP");
    lab.apply("udp.yaml", &udp);
    lab.apply("udp-slice.yaml", &objects::slice("udp", "udp", &[node]));
    let node_port = objects::service("node-port", "10.96.0.92", "type: NodePort")
        .replace("port: 80", &format!("port: 80\n    nodePort: {NODE_PORT}"));
    lab.apply("node-port.yaml", &node_port);
    let slice = objects::slice("node-port", "node-port", &[node]);
    lab.apply("node-port-slice.yaml", &slice.replace("port: 8080", &format!("port: {NODE_PORT}")));
}

/// The client's address.
const CLIENT: &str = "192.168.50.201";

pub(super) fn same_port(lab: &mut AgentLab) -> Outcome {
    let node = lab.node_ips()[0];
    apply(lab, node);
    let ports = [Port::Tcp(PORT), Port::Udp(PORT), Port::Tcp(NODE_PORT)];
    let _host = Server::start(lab.node(), "host", &ports)?;
    start(lab, &[])?;
    lab.web_works()?;
    let at = |ip: &str, port| -> Result<SocketAddr, Failed> { Ok(SocketAddr::new(ip.parse()?, port)) };
    let frontends = [
        (Protocol::Tcp, at("10.96.0.90", PORT)?, "tcp"),
        (Protocol::Tcp, SocketAddr::new(node, PORT), "tcp"),
        (Protocol::Udp, at("10.96.0.91", PORT)?, "udp"),
        (Protocol::Udp, SocketAddr::new(node, PORT), "udp"),
        (Protocol::Tcp, at("10.96.0.92", 80)?, "node-port"),
        (Protocol::Tcp, SocketAddr::new(node, NODE_PORT), "node-port"),
    ];
    for (protocol, to, service) in frontends {
        let relayed = |lab: &AgentLab| {
            let port = if protocol == Protocol::Udp { "udp" } else { "" };
            let labels = format!(r#"namespace="default",service="{service}",port="{port}""#);
            let page = lab.status("/metrics")?.body;
            let of_service = |line: &&str| {
                line.starts_with("portway_userspace_connections_total") && line.contains(&labels)
            };
            let count = page.lines().find(of_service).and_then(|line| line.rsplit(' ').next()?.parse().ok());
            Ok::<f64, Failed>(count.unwrap_or(0.0))
        };
        let before = relayed(lab)?;
        let attempt = || {
            let outcome = Probe::new(lab.client(), protocol, to).count(4).timeout(answer_timeout()).run();
            let all = outcome.all_answered() && outcome.servers().into_iter().eq(["host"]);
            if all { Ok(()) } else { Err(format!("{protocol:?} {to}: {outcome}")) }
        };
        eventually(wait_timeout(), attempt)?;
        // Without a relay the server on the node would have answered as well, so relayed connections are counted.
        let after = relayed(lab)?;
        ensure(after >= before + 4.0, || {
            format!("{to}: {after} relayed connections, {before} before the probe")
        })?;
    }
    Ok(())
}
