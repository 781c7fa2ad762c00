//! Which hosts reach each other, and the results of probes without a server, host or route.

use portway_lab::{Conversation, Failure, Lab, LabHost, Layout, Load, Outcome, Port, Probe, Protocol};
use portway_testkit::harness::Test;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::function("packets::every_host_reaches_every_host", every_host_reaches_every_host),
        Test::function("packets::a_port_without_a_server_is_refused", a_port_without_a_server_is_refused),
        Test::function("packets::unknown_addresses_time_out", unknown_addresses_time_out),
        Test::function(
            "packets::a_host_without_a_route_reports_unreachable",
            a_host_without_a_route_reports_unreachable,
        ),
        Test::function("packets::a_pod_without_its_link_times_out", a_pod_without_its_link_times_out),
        Test::function("packets::a_stopped_server_refuses", a_stopped_server_refuses),
        Test::function("packets::a_pod_added_later_is_reached", a_pod_added_later_is_reached),
        Test::function("packets::an_added_address_is_reached", an_added_address_is_reached),
        Test::function("packets::clients_go_through_the_chosen_node", clients_go_through_the_chosen_node),
        Test::function(
            "packets::a_conversation_continues_over_several_requests",
            a_conversation_continues_over_several_requests,
        ),
        Test::function("packets::a_conversation_ends_with_its_server", a_conversation_ends_with_its_server),
        Test::function("packets::a_load_without_failures_is_clean", a_load_without_failures_is_clean),
        Test::function("packets::a_load_reports_failures", a_load_reports_failures),
        Test::function("packets::a_server_answers_many_connections", a_server_answers_many_connections),
        Test::function("packets::three_nodes_are_built_and_removed", three_nodes),
    ]
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
const SHORT: Duration = Duration::from_millis(500);

fn build(nodes: usize, pods_per_node: usize, clients: usize) -> Lab {
    let lab = Layout { nodes, pods_per_node, clients }.build().unwrap();
    for host in lab.hosts() {
        host.serve(&[Port::Tcp(80), Port::Udp(80)]).unwrap();
    }
    lab
}

/// Probes in both protocols and families at the same time; returns one outcome, after checking that all are the same.
fn probe(from: &LabHost, to: impl Fn(usize) -> SocketAddr) -> Outcome {
    let cells = [0, 1].into_iter().flat_map(|family| PROTOCOLS.map(|protocol| (protocol, to(family))));
    let probes: Vec<_> =
        cells.map(|(protocol, to)| Probe::new(from, protocol, to).count(8).timeout(SHORT)).collect();
    let mut all: Vec<Outcome> = thread::scope(|scope| {
        let running: Vec<_> = probes.iter().map(|probe| scope.spawn(|| probe.run())).collect();
        running.into_iter().map(|probe| probe.join().unwrap()).collect()
    });
    for (probe, outcome) in probes.iter().zip(&all) {
        println!("{} -> {}/{}: {outcome}", from.name(), probe.to, probe.protocol);
        assert_eq!(outcome.attempts(), 8);
    }
    let summary = |o: &Outcome| (o.servers().len(), o.answered(), o.refused, o.timed_out, o.unreachable);
    assert!(all.iter().all(|o| summary(o) == summary(&all[0])), "protocols or families differ: {all:#?}");
    all.swap_remove(0)
}

fn every_host_reaches_every_host() {
    let lab = build(2, 2, 1);
    for from in lab.hosts() {
        for to in lab.hosts() {
            let outcome = probe(from, |family| to.sockets(80)[family]);
            assert_eq!(Vec::from_iter(outcome.servers()), [to.name()]);
            // The source is the sender's own address, because the lab does not masquerade. A node sends to its own pods
            // from its address on their link.
            let sources = Vec::from_iter(outcome.sources());
            let own: std::net::IpAddr = from.ipv4().into();
            let gateway: std::net::IpAddr = match from.role() {
                portway_lab::Role::Node(n) => [10, 244, n as u8, 1].into(),
                _ => own,
            };
            assert!(sources == [own] || sources == [gateway], "{} saw {sources:?}", to.name());
        }
    }
}

fn a_port_without_a_server_is_refused() {
    let lab = build(2, 1, 1);
    // More than the kernel's default rate limit of ICMP errors allows.
    for to in [lab.pod("pod2a"), lab.node(2)].into_iter().flat_map(|host| host.sockets(81)) {
        for protocol in PROTOCOLS {
            let outcome = Probe::new(lab.client(1), protocol, to).count(100).timeout(SHORT).run();
            assert!(outcome.all_refused(), "{to}/{protocol}: {outcome}");
        }
    }
}

fn unknown_addresses_time_out() {
    let lab = build(1, 1, 1);
    let vip: [SocketAddr; 2] = ["10.96.0.1:80".parse().unwrap(), "[fd96::1]:80".parse().unwrap()];
    for from in lab.hosts() {
        let outcome = probe(from, |family| vip[family]);
        assert!(outcome.all_timed_out(), "{}: {outcome}", from.name());
    }
}

fn a_host_without_a_route_reports_unreachable() {
    let lab = build(1, 2, 0);
    lab.pod("pod1a").delete_uplink().unwrap();
    let outcome = probe(lab.pod("pod1a"), |family| lab.pod("pod1b").sockets(80)[family]);
    assert_eq!(outcome.unreachable, 8, "{outcome}");
}

fn a_pod_without_its_link_times_out() {
    let lab = build(2, 1, 1);
    lab.pod("pod2a").delete_uplink().unwrap();
    for from in [lab.client(1), lab.pod("pod1a"), lab.node(1), lab.node(2)] {
        let outcome = probe(from, |family| lab.pod("pod2a").sockets(80)[family]);
        assert!(outcome.all_timed_out(), "{}: {outcome}", from.name());
    }
}

fn a_stopped_server_refuses() {
    let lab = build(1, 1, 1);
    let pod = lab.pod("pod1a");
    pod.stop_servers();
    let outcome = probe(lab.client(1), |family| pod.sockets(80)[family]);
    assert!(outcome.all_refused(), "{outcome}");
    pod.serve(&[Port::Tcp(80), Port::Udp(80)]).unwrap();
    assert!(probe(lab.client(1), |family| pod.sockets(80)[family]).all_answered());
}

fn a_pod_added_later_is_reached() {
    let mut lab = build(2, 1, 0);
    let pod = lab.add_pod(2).unwrap();
    pod.serve(&[Port::Tcp(80), Port::Udp(80)]).unwrap();
    assert_eq!(pod.name(), "pod2b");
    let outcome = probe(lab.pod("pod1a"), |family| lab.pod("pod2b").sockets(80)[family]);
    assert!(outcome.all_answered(), "{outcome}");
}

fn an_added_address_is_reached() {
    let lab = Layout { nodes: 1, pods_per_node: 0, clients: 1 }.build().unwrap();
    let added: [SocketAddr; 2] = ["192.168.50.99:80".parse().unwrap(), "[fd50::99]:80".parse().unwrap()];
    let nets = ["192.168.50.99/24".parse().unwrap(), "fd50::99/64".parse().unwrap()];
    for net in nets {
        lab.node(1).add_address(net).unwrap();
    }
    lab.node(1).serve(&[Port::Tcp(80), Port::Udp(80)]).unwrap();
    assert!(probe(lab.client(1), |family| added[family]).all_answered());
    let twice = lab.node(1).add_address(nets[0]).unwrap_err().to_string();
    assert!(twice.contains("in node1: kernel refused to add address 192.168.50.99/24 to eth0"), "{twice}");
    for net in nets {
        lab.node(1).remove_address(net).unwrap();
    }
    assert!(probe(lab.client(1), |family| added[family]).answered() == 0);
}

fn clients_go_through_the_chosen_node() {
    let lab = build(2, 1, 1);
    let (client, pod) = (lab.client(1), lab.pod("pod2a"));
    assert!(probe(client, |family| pod.sockets(80)[family]).all_answered());
    lab.node(1).delete_uplink().unwrap();
    let outcome = probe(client, |family| pod.sockets(80)[family]);
    assert_eq!(outcome.answered(), 0, "node1 has no uplink, yet {outcome}");
    client.route_via(lab.node(2)).unwrap();
    assert!(probe(client, |family| pod.sockets(80)[family]).all_answered());
}

fn a_conversation_continues_over_several_requests() {
    let lab = build(2, 1, 0);
    for to in lab.pod("pod2a").sockets(80) {
        for protocol in PROTOCOLS {
            let mut conversation = Conversation::begin(lab.pod("pod1a"), protocol, to, SHORT).unwrap();
            for text in ["one", "two words", ""] {
                let reply = conversation.ask(text).unwrap();
                assert_eq!((reply.server.as_str(), reply.text.as_str()), ("pod2a", text));
                assert_eq!(reply.source, conversation.local());
            }
        }
    }
}

fn a_conversation_ends_with_its_server() {
    let lab = build(2, 1, 0);
    for to in lab.pod("pod2a").sockets(80) {
        let begin = |protocol| Conversation::begin(lab.pod("pod1a"), protocol, to, SHORT).unwrap();
        let (mut tcp, mut udp) = (begin(Protocol::Tcp), begin(Protocol::Udp));
        assert!(tcp.ask("request").is_ok() && udp.ask("request").is_ok());
        lab.pod("pod2a").stop_servers();
        assert!(matches!(tcp.ask("request"), Err(Failure::Closed | Failure::Reset)));
        assert_eq!(udp.ask("request"), Err(Failure::Refused));
        lab.pod("pod2a").serve(&[Port::Tcp(80), Port::Udp(80)]).unwrap();
        assert_eq!(udp.ask("request").unwrap().server, "pod2a");
    }
    lab.pod("pod2a").delete_uplink().unwrap();
    let to = lab.pod("pod2a").sockets(80)[0];
    let mut udp = Conversation::begin(lab.pod("pod1a"), Protocol::Udp, to, SHORT).unwrap();
    assert_eq!(udp.ask("request"), Err(Failure::TimedOut));
}

fn a_load_without_failures_is_clean() {
    let lab = build(2, 1, 1);
    let start = Instant::now();
    let load = Load::start(lab.client(1), lab.pod("pod2a").sockets(80)[0], 500.0);
    thread::sleep(Duration::from_millis(500));
    let report = load.stop();
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    // A busy machine may make fewer connections, but never more.
    let due = (start.elapsed().as_secs_f64() * 500.0) as usize + 1;
    assert!((10..=due).contains(&report.ok), "{} instead of {due}", report.ok);
    assert_eq!(Vec::from_iter(report.servers.keys()), ["pod2a"]);
}

fn a_load_reports_failures() {
    let lab = build(1, 1, 1);
    let load = Load::start(lab.client(1), lab.pod("pod1a").sockets(80)[0], 500.0);
    thread::sleep(Duration::from_millis(500));
    lab.pod("pod1a").stop_servers();
    thread::sleep(Duration::from_millis(500));
    let report = load.stop();
    assert!(report.ok > 20 && report.failed.len() > 20, "{report}");
    assert!(report.failed.iter().all(|(when, _)| *when > Duration::from_millis(450)), "{report}");
    assert!(report.failed.iter().any(|(_, failure)| *failure == Failure::Refused), "{report}");
}

fn a_server_answers_many_connections() {
    let lab = build(2, 1, 0);
    let start = Instant::now();
    let outcome = Probe::tcp(lab.pod("pod1a"), lab.pod("pod2a").sockets(80)[0]).count(5000).run();
    println!("5000 connections in {:?}: {outcome}", start.elapsed());
    assert!(outcome.all_answered(), "{outcome}");
}

fn three_nodes() {
    let start = Instant::now();
    let lab = Layout { nodes: 3, pods_per_node: 2, clients: 1 }.build().unwrap();
    let built = start.elapsed();
    assert_eq!(lab.hosts().count(), 10);
    drop(lab);
    println!("3 nodes, 6 pods, 1 client: built in {built:?}, removed in {:?}", start.elapsed() - built);
    assert_eq!(Layout { nodes: 0, pods_per_node: 0, clients: 0 }.build().unwrap().hosts().count(), 0);
}
