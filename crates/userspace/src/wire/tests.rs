//! The encoding of all messages, as golden text: a change of it needs another [`VERSION`], unless it is one of the four
//! messages that never change.

use super::*;
use crate::stats::BUCKETS;
use portway_dataplane::Balancing;
use portway_model::{Frontend, FrontendKind, PortPlan, Protocol, Target, TrafficPolicy};

#[test]
fn releases_are_ordered_by_their_numbers() {
    assert!(
        is_later("0.2.0/1", "0.1.9/7") && is_later("0.10.0/1", "0.9.0/1") && is_later("0.1.0/3", "0.1.0/2")
    );
    assert!(!is_later(VERSION, VERSION) && !is_later("0.0.1/1", VERSION));
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn targets(addresses: &[&str], port: u16) -> Box<[Target]> {
    addresses.iter().map(|address| Target { ip: ip(address), port }).collect()
}

fn frontend(kind: FrontendKind, address: Option<&str>, port: u16) -> Frontend {
    Frontend { kind, address: address.map(ip), port }
}

fn listeners(address: &str) -> ListenerPorts {
    ListenerPorts { address: ip(address), tcp: [800, 801], udp: [800, 801] }
}

fn settings() -> UserspaceSettings {
    UserspaceSettings {
        addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")],
        balancing: Balancing::LeastConnections,
        connect_timeout: Duration::from_millis(1500),
        connect_attempts: 4,
        drain_timeout: Duration::from_secs(600),
        stop_timeout: Duration::from_secs(20),
        udp_timeout: Duration::from_secs(120),
        udp_sessions: 16_384,
        bypass_mark: 1 << 13,
        localhost_node_ports: true,
    }
}

/// An IPv4 plan in which no field has its default: two ports, both protocols, all kinds of frontends, cluster and local
/// endpoints, affinity, source ranges, the PROXY protocol.
fn web() -> ServicePlan {
    let http = PortPlan {
        name: "http".into(),
        protocol: Protocol::Tcp,
        frontends: [
            frontend(FrontendKind::ClusterIp, Some("10.96.0.1"), 80),
            frontend(FrontendKind::LoadBalancer, Some("203.0.113.1"), 80),
            frontend(FrontendKind::ExternalIp, Some("198.51.100.1"), 80),
            frontend(FrontendKind::NodePort, None, 30080),
        ]
        .into(),
        cluster: targets(&["10.244.1.10", "10.244.2.10"], 8080),
        local: targets(&["10.244.1.10"], 8080),
        also_serving: [].into(),
        here: [ip("10.244.1.10")].into(),
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Local,
        affinity: Some(10_800),
        source_ranges: ["203.0.113.0/24".parse().expect("a range")].into(),
        admits_node: true,
    };
    let dns = PortPlan {
        name: "dns".into(),
        protocol: Protocol::Udp,
        frontends: [frontend(FrontendKind::ClusterIp, Some("10.96.0.1"), 53)].into(),
        cluster: targets(&["10.244.1.10"], 5353),
        local: [].into(),
        also_serving: targets(&["10.244.3.10"], 5353),
        here: [].into(),
        internal: TrafficPolicy::Local,
        external: TrafficPolicy::Cluster,
        affinity: None,
        source_ranges: [].into(),
        admits_node: false,
    };
    ServicePlan {
        name: ServiceName::new("default", "web"),
        family: Family::V4,
        ports: [http, dns].into(),
        health_check: Some(30_001),
        scheduler: Some("wrr".into()),
        proxy_protocol: Some("v2".into()),
    }
}

/// The same Service in IPv6, with an SCTP port.
fn web_v6() -> ServicePlan {
    let sctp = PortPlan {
        name: "".into(),
        protocol: Protocol::Sctp,
        frontends: [frontend(FrontendKind::ClusterIp, Some("fd96::1"), 9899)].into(),
        cluster: targets(&["fd00:1::10"], 9899),
        local: [].into(),
        also_serving: [].into(),
        here: [].into(),
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Cluster,
        affinity: None,
        source_ranges: [].into(),
        admits_node: false,
    };
    let ports = [sctp].into();
    ServicePlan {
        family: Family::V6,
        ports,
        health_check: None,
        scheduler: None,
        proxy_protocol: None,
        ..web()
    }
}

/// A message of every variant. The match makes a new variant fail to compile until it is here.
fn requests() -> Vec<Request> {
    match Request::Hello {
        Request::Hello
        | Request::Begin
        | Request::Configure(_)
        | Request::Listeners { .. }
        | Request::Change { .. }
        | Request::CommitRoutes(_)
        | Request::Count
        | Request::CountLoopback
        | Request::Agents
        | Request::HandOverUdp
        | Request::Leave { .. } => {}
    }
    let (name, deleted) = (ServiceName::new("default", "web"), ServiceName::new("kube-system", "gone"));
    vec![
        Request::Hello,
        Request::Begin,
        Request::Configure(settings()),
        Request::Listeners {
            family: Family::V4,
            addresses: vec![ip("192.0.2.1")],
            previous: Some(listeners("192.0.2.1")),
        },
        Request::Listeners { family: Family::V6, addresses: vec![ip("2001:db8::1")], previous: None },
        Request::Change { family: Family::V4, services: vec![(name.clone(), Some(web())), (deleted, None)] },
        Request::Change { family: Family::V6, services: vec![(name, Some(web_v6()))] },
        Request::CommitRoutes(Family::V4),
        Request::CommitRoutes(Family::V6),
        Request::Count,
        Request::CountLoopback,
        Request::Agents,
        Request::HandOverUdp,
        Request::Leave { limit: None, quiet: Duration::from_secs(60) },
        Request::Leave { limit: Some(Duration::from_millis(2500)), quiet: Duration::ZERO },
    ]
}

/// An answer of every variant.
fn answers() -> Vec<Answer> {
    match Answer::Done {
        Answer::Welcome { .. }
        | Answer::Done
        | Answer::Listeners(_)
        | Answer::Agents(_)
        | Answer::Counts(_)
        | Answer::LoopbackCounts(_)
        | Answer::Failed(_) => {}
    }
    let id = PortId {
        service: ServiceName::new("default", "web"),
        port: "http".into(),
        protocol: Protocol::Tcp,
        family: Family::V4,
    };
    let counts = Counts {
        connections: 9,
        open: 2,
        received: 1000,
        sent: 20_000,
        retries: 1,
        failures: 3,
        connect_buckets: std::array::from_fn(|i| i as u64),
        connect_seconds: 0.25,
    };
    assert_eq!(counts.connect_buckets.len(), BUCKETS.len() + 1);
    vec![
        Answer::Welcome { version: "0.1.0/6".into(), process: 830, agents: 1 },
        Answer::Done,
        Answer::Listeners(Some(listeners("192.0.2.1"))),
        Answer::Listeners(None),
        Answer::Agents(2),
        Answer::Counts(vec![(id, counts)]),
        Answer::LoopbackCounts(LoopbackCounts { listeners: [2, 1], failures: [3, 0], accepted: 4 }),
        Answer::Failed("no such address".into()),
    ]
}

/// The JSON of a message, without its length.
fn json<T: Serialize>(message: &T) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes, message).expect("a message");
    let (length, json) = bytes.split_at(4);
    assert_eq!(length, u32::try_from(json.len()).expect("a length").to_be_bytes());
    String::from_utf8(json.to_vec()).expect("text")
}

#[test]
fn the_encoding_of_every_message_is_that_of_its_version() {
    let requests: Vec<String> = requests().iter().map(json).collect();
    let answers: Vec<String> = answers().iter().map(json).collect();
    let version = VERSION.rsplit('/').next().unwrap_or_default();
    insta::assert_snapshot!(format!(
        "version {version}\n\n{}\n\n{}",
        requests.join("\n"),
        answers.join("\n")
    ));
}

/// Every release sends and accepts these messages, whatever its version.
#[test]
fn the_messages_between_releases_never_change() {
    assert_eq!(json(&Request::Hello), r#""hello""#);
    let leave = Request::Leave { limit: None, quiet: Duration::from_secs(60) };
    assert_eq!(json(&leave), r#"{"leave":{"limit":null,"quiet":{"secs":60,"nanos":0}}}"#);
    assert_eq!(json(&Answer::Done), r#""done""#);
    // Early releases did not send the number of agents.
    let welcome: Answer =
        serde_json::from_str(r#"{"welcome":{"version":"0.0.1/1","process":1}}"#).expect("json");
    assert_eq!(welcome, Answer::Welcome { version: "0.0.1/1".into(), process: 1, agents: 0 });
}

#[test]
fn every_message_reads_back_as_it_was_written() {
    let (requests, answers) = (requests(), answers());
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| write(&mut bytes, request).expect("written"));
    answers.iter().for_each(|answer| write(&mut bytes, answer).expect("written"));
    let mut from = &bytes[..];
    for request in requests {
        assert_eq!(read(&mut from).expect("readable"), Some(request));
    }
    for answer in answers {
        assert_eq!(read(&mut from).expect("readable"), Some(answer));
    }
    assert_eq!(read::<Request>(&mut from).expect("the end"), None);
}

#[test]
fn a_message_that_is_cut_off_too_long_or_unknown_is_an_error() {
    let mut bytes = Vec::new();
    write(&mut bytes, &Request::CommitRoutes(Family::V4)).expect("written");
    assert!(read::<Request>(&mut &bytes[..bytes.len() - 1]).is_err());
    assert!(
        read::<Request>(&mut &(MAX_LENGTH + 1).to_be_bytes()[..])
            .is_err_and(|e| e.to_string().contains("too long"))
    );
    let mut unknown = Vec::new();
    write(&mut unknown, &"no-such-request").expect("written");
    assert!(read::<Request>(&mut &unknown[..]).is_err());
}
