//! A table of packets. The redirecting rules are replaced by a lookup: the frontend that matches a packet, and the
//! outcome that its plan gives.

use super::*;
use crate::redirect::{to_endpoints, to_listeners};
use portway_model::{Family, Frontend, FrontendKind, Outcome, PortPlan, ServiceName, TrafficPolicy};
use std::net::IpAddr;

const NODE: &str = "192.168.50.11";
/// An endpoint on this node.
const LOCAL: &str = "10.244.1.10";
/// An endpoint on another node.
const REMOTE: &str = "10.244.2.10";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn listeners() -> ListenerPorts {
    ListenerPorts { address: ip(NODE), tcp: [800, 801], udp: [802, 803] }
}

fn port(protocol: Protocol, frontends: &[Frontend], endpoints: &[&str]) -> PortPlan {
    let targets = |all: Vec<&&str>| all.iter().map(|e| Target { ip: ip(e), port: 8080 }).collect();
    PortPlan {
        name: "http".into(),
        protocol,
        frontends: frontends.into(),
        cluster: targets(endpoints.iter().collect()),
        local: targets(endpoints.iter().filter(|e| **e == LOCAL).collect()),
        also_serving: [].into(),
        here: [].into(),
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Local,
        affinity: None,
        source_ranges: [].into(),
        admits_node: false,
    }
}

fn service(name: &str, ports: &[PortPlan]) -> ServicePlan {
    ServicePlan {
        name: ServiceName::new("default", name),
        family: Family::V4,
        ports: ports.into(),
        health_check: None,
        scheduler: None,
        proxy_protocol: (name == "proxied").then(|| "v2".into()),
    }
}

fn at(kind: FrontendKind, address: Option<&str>, port: u16) -> Frontend {
    Frontend { kind, address: address.map(ip), port }
}

fn plans() -> Vec<ServicePlan> {
    use FrontendKind::{ClusterIp, NodePort};
    let both = [LOCAL, REMOTE];
    let cluster = |last: u8, number| at(ClusterIp, Some(&format!("10.96.0.{last}")), number);
    vec![
        service("web", &[port(Protocol::Tcp, &[cluster(1, 80), at(NodePort, None, 30001)], &both)]),
        service("dns", &[port(Protocol::Udp, &[cluster(2, 53)], &both)]),
        service("sctp", &[port(Protocol::Sctp, &[cluster(3, 9899)], &both)]),
        service("empty", &[port(Protocol::Tcp, &[cluster(4, 80), at(NodePort, None, 30004)], &[])]),
        service("remote", &[port(Protocol::Tcp, &[cluster(5, 80), at(NodePort, None, 30005)], &[REMOTE])]),
        service("proxied", &[port(Protocol::Tcp, &[cluster(6, 80)], &[LOCAL])]),
    ]
}

/// The verdict of rules that were given these plans.
fn rules(plans: &[ServicePlan], packet: &Packet) -> Verdict {
    let matches = |f: &&Frontend| {
        let address = f.address.map_or(packet.destination == ip(NODE), |ip| ip == packet.destination);
        address && f.port == packet.port
    };
    let ports = plans.iter().flat_map(|plan| &plan.ports).filter(|port| port.protocol == packet.protocol);
    for port in ports {
        if let Some(frontend) = port.frontends.iter().find(matches) {
            return match port.outcome(frontend.kind) {
                Outcome::Balance(to) => {
                    Verdict::Delivered { to: to.iter().copied().collect(), masqueraded: false }
                }
                Outcome::Reject => Verdict::Rejected,
                Outcome::Drop => Verdict::Dropped,
            };
        }
    }
    Verdict::Untouched
}

fn packet(to: &str) -> Packet {
    let (to, protocol) = to.split_once('/').unwrap_or((to, "TCP"));
    let to: SocketAddr = to.parse().expect("an address");
    let protocol = Protocol::parse(protocol).expect("a protocol");
    let (destination, port) = (to.ip(), to.port());
    Packet { source: ip("203.0.113.9"), destination, protocol, port, input: Some("eth0".into()) }
}

/// The path and the verdict, in a line.
fn follow(listeners: Option<ListenerPorts>, to: &str) -> String {
    let plans = plans();
    let for_rules: Vec<ServicePlan> =
        plans.iter().map(|p| listeners.map_or_else(|| to_endpoints(p), |l| to_listeners(p, &l))).collect();
    let evaluator = Evaluator::new(&plans, &UserspaceSettings::default(), listeners);
    let packet = packet(to);
    let of_rules = Path { steps: Vec::new(), verdict: rules(&for_rules, &packet) };
    let Path { steps, verdict } = evaluator.follow(&packet, Trace::new(vec![of_rules])).paths.swap_remove(0);
    let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let end = match verdict {
        Verdict::Delivered { to, masqueraded } => {
            let to: Vec<String> = to.iter().map(ToString::to_string).collect();
            format!("{}{}", to.join(" "), if masqueraded { " masqueraded" } else { "" })
        }
        other => format!("{other:?}").to_lowercase(),
    };
    format!("{} => {end}", if steps.is_empty() { "rules".to_owned() } else { steps.join("; ") })
}

#[test]
fn every_packet_has_the_expected_verdict() {
    const BOTH: &str = "10.244.1.10:8080, 10.244.2.10:8080";
    let rows = [
        // A cluster IP: the listener for all endpoints.
        (
            "10.96.0.1:80",
            format!(
                r#"listener {NODE}:800, scope Cluster; route: default/web port "http"; connect to one of {{{BOTH}}} => 10.244.1.10:8080 10.244.2.10:8080 masqueraded"#
            ),
        ),
        // Policy Local: the listener for endpoints of this node.
        (
            "192.168.50.11:30001",
            format!(
                r#"listener {NODE}:801, scope Local; route: default/web port "http"; connect to one of {{{LOCAL}:8080}} => {LOCAL}:8080 masqueraded"#
            ),
        ),
        (
            "10.96.0.2:53/UDP",
            format!(
                r#"listener {NODE}:802, scope Cluster; route: default/dns port "http"; connect to one of {{{BOTH}}} => 10.244.1.10:8080 10.244.2.10:8080 masqueraded"#
            ),
        ),
        (
            "10.96.0.6:80",
            format!(
                r#"listener {NODE}:800, scope Cluster; route: default/proxied port "http"; connect to one of {{{LOCAL}:8080}}, with a PROXY header => {LOCAL}:8080 masqueraded"#
            ),
        ),
        // The rules decide, and the relay is not involved.
        ("10.96.0.3:9899/SCTP", "rules => 10.244.1.10:8080 10.244.2.10:8080".to_owned()),
        ("10.96.0.4:80", "rules => rejected".to_owned()),
        ("192.168.50.11:30004", "rules => rejected".to_owned()),
        ("192.168.50.11:30005", "rules => dropped".to_owned()),
        ("10.96.0.1:81", "rules => untouched".to_owned()),
        // A connection that is made to a listener directly is refused.
        ("192.168.50.11:800", format!("listener {NODE}:800 dialled directly => rejected")),
        ("192.168.50.11:803/UDP", format!("listener {NODE}:803 dialled directly => dropped")),
        ("192.168.50.11:802", "rules => untouched".to_owned()),
    ];
    for (to, expected) in rows {
        assert_eq!(follow(Some(listeners()), to), expected, "{to}");
    }
}

#[test]
fn without_a_relay_the_rules_send_packets_to_endpoints() {
    let rows = [
        ("10.96.0.1:80", "rules => 10.244.1.10:8080 10.244.2.10:8080"),
        ("192.168.50.11:30001", "rules => 10.244.1.10:8080"),
        ("10.96.0.6:80", "rules => rejected"),
        ("192.168.50.11:800", "rules => untouched"),
    ];
    for (to, expected) in rows {
        assert_eq!(follow(None, to), expected, "{to}");
    }
}

/// The rules still point to a listener, but the Service was deleted, or the scope has no endpoint any more.
#[test]
fn a_listener_refuses_packets_without_a_route_or_an_endpoint() {
    let delivered = |number| {
        let to = [Target { ip: ip(NODE), port: number }].into();
        Trace::new(vec![Path { steps: Vec::new(), verdict: Verdict::Delivered { to, masqueraded: false } }])
    };
    let evaluator = Evaluator::new(&plans(), &UserspaceSettings::default(), Some(listeners()));
    let verdict = |to, number| evaluator.follow(&packet(to), delivered(number)).verdict().cloned();
    assert_eq!(verdict("10.96.0.9:80", 800), Some(Verdict::Rejected));
    let without_route = evaluator.follow(&packet("10.96.0.9:80"), delivered(800));
    assert_eq!(
        without_route.paths[0].steps.last().map(ToString::to_string).as_deref(),
        Some("no route for 10.96.0.9:80")
    );
    assert_eq!(verdict("10.96.0.9:53/UDP", 802), Some(Verdict::Dropped));
    assert_eq!(verdict("10.96.0.5:80", 801), Some(Verdict::Rejected));
}
