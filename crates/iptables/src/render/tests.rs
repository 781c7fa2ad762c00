//! Golden tests: the rules of plans, as printed for `iptables-restore`.

mod services;
mod settings;

use portway_dataplane::{LocalTraffic, Settings};
use portway_model::{
    Family, Frontend, FrontendKind, PortPlan, Protocol, ServiceName, ServicePlan, Target, TrafficPolicy,
};
use portway_xtables::Variant;
use portway_xtables::fake::Fake;
use std::collections::HashSet;
use std::net::SocketAddr;

fn settings() -> Settings {
    let ranges = ["10.244.0.0/16", "fd10:244::/32"].map(|r| r.parse().unwrap());
    Settings { local: LocalTraffic::Cidrs(ranges.into()), ..Settings::default() }
}

fn frontend(kind: FrontendKind, address: &str) -> Frontend {
    let address: SocketAddr = address.parse().unwrap();
    Frontend { kind, address: Some(address.ip()), port: address.port() }
}

fn cluster_ip(address: &str) -> Frontend {
    frontend(FrontendKind::ClusterIp, address)
}

fn node_port(port: u16) -> Frontend {
    Frontend { kind: FrontendKind::NodePort, address: None, port }
}

fn targets(endpoints: &[&str]) -> Box<[Target]> {
    let target = |text: &&str| {
        let address: SocketAddr = text.parse().unwrap();
        Target { ip: address.ip(), port: address.port() }
    };
    endpoints.iter().map(target).collect()
}

fn port(name: &str, protocol: Protocol, frontends: &[Frontend], endpoints: &[&str]) -> PortPlan {
    PortPlan {
        name: name.into(),
        protocol,
        frontends: frontends.into(),
        cluster: targets(endpoints),
        local: Box::default(),
        also_serving: Box::default(),
        here: Box::default(),
        internal: TrafficPolicy::Cluster,
        external: TrafficPolicy::Cluster,
        affinity: None,
        source_ranges: Box::default(),
        admits_node: false,
    }
}

fn service(namespace: &str, name: &str, ports: Vec<PortPlan>) -> ServicePlan {
    let family = ports[0].frontends.iter().find_map(|f| f.address).map_or(Family::V4, Family::of);
    let name = ServiceName::new(namespace, name);
    ServicePlan {
        name,
        family,
        ports: ports.into(),
        health_check: None,
        scheduler: None,
        proxy_protocol: None,
    }
}

/// The Service `default/web` with one port, `http`.
fn web(frontends: &[Frontend], endpoints: &[&str]) -> ServicePlan {
    service("default", "web", vec![port("http", Protocol::Tcp, frontends, endpoints)])
}

fn with(mut plan: ServicePlan, change: impl Fn(&mut PortPlan)) -> ServicePlan {
    plan.ports.iter_mut().for_each(change);
    plan
}

/// All rules of the mode with these plans.
fn all_rules(family: Family, settings: &Settings, plans: Vec<ServicePlan>) -> String {
    let mut mode = crate::mode::with_kernel(Fake::new(family, Variant::Legacy), family);
    let changes = plans.into_iter().map(|plan| (plan.name.clone(), Some(plan))).collect();
    let report = mode.sync(settings, changes).unwrap();
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    mode.as_program().wanted()
}

/// The rules that a Service adds to the constant ones.
fn service_rules(settings: &Settings, plan: ServicePlan) -> String {
    let family = plan.family;
    let base = all_rules(family, settings, Vec::new());
    let base: HashSet<&str> = base.lines().filter(|line| !line.starts_with('*')).collect();
    let all = all_rules(family, settings, vec![plan]);
    let own: Vec<&str> = all.lines().filter(|line| !base.contains(line)).collect();
    // Tables without added rules are left out.
    let has_rules = |i: usize| own.get(i + 1).is_some_and(|next| !next.starts_with('*'));
    let lines = own.iter().enumerate().filter(|(i, line)| !line.starts_with('*') || has_rules(*i));
    lines.map(|(_, line)| format!("{line}\n")).collect()
}

fn assert_contains_lines(text: &str, lines: &str) {
    let present: HashSet<&str> = text.lines().collect();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        assert!(present.contains(line), "`{line}` is missing in\n{text}");
    }
}

/// The expected rules are those of kube-proxy in published documents.
#[test]
fn rules_equal_those_of_kube_proxy() {
    use Protocol::{Tcp, Udp};
    let nginx = port(
        "",
        Tcp,
        &[cluster_ip("10.109.134.113:8080")],
        &["172.17.0.3:80", "172.17.0.4:80", "172.17.0.5:80"],
    );
    let pod08 = port("", Tcp, &[cluster_ip("10.96.125.237:8080")], &["10.100.85.246:80", "10.100.85.253:80"]);
    let api = port("https", Tcp, &[cluster_ip("10.96.0.1:443")], &["192.168.49.2:8443"]);
    let dns = |name, protocol, frontend, to| port(name, protocol, &[cluster_ip(frontend)], &[to]);
    let dns = vec![
        dns("dns", Udp, "10.96.0.10:53", "172.17.0.2:53"),
        dns("dns-tcp", Tcp, "10.96.0.10:53", "172.17.0.2:53"),
        dns("metrics", Tcp, "10.96.0.10:9153", "172.17.0.2:9153"),
    ];
    let plans = vec![
        service("default", "nginx", vec![nginx]),
        service("default", "nginx-pod08", vec![pod08]),
        service("default", "kubernetes", vec![api]),
        service("kube-system", "kube-dns", dns),
    ];
    let text = all_rules(Family::V4, &settings(), plans);
    // Rules in built-in chains are inserted, not appended.
    let text = text.replace("\n-I PREROUTING", "\n-A PREROUTING");
    assert_contains_lines(
        &text,
        r#"
        -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
        -A KUBE-SERVICES -d 10.96.125.237/32 -p tcp -m comment --comment "default/nginx-pod08 cluster IP" -m tcp --dport 8080 -j KUBE-SVC-DDZHMK5AO3JF6KIZ
        -A KUBE-SVC-DDZHMK5AO3JF6KIZ -m comment --comment "default/nginx-pod08" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ATSP76LQOJHSORE7
        -A KUBE-SVC-DDZHMK5AO3JF6KIZ -m comment --comment "default/nginx-pod08" -j KUBE-SEP-FXZXKRS4RXLGILD5
        -A KUBE-SEP-FXZXKRS4RXLGILD5 -s 10.100.85.253/32 -m comment --comment "default/nginx-pod08" -j KUBE-MARK-MASQ
        -A KUBE-SEP-FXZXKRS4RXLGILD5 -p tcp -m comment --comment "default/nginx-pod08" -m tcp -j DNAT --to-destination 10.100.85.253:80
        -A KUBE-SEP-ATSP76LQOJHSORE7 -s 10.100.85.246/32 -m comment --comment "default/nginx-pod08" -j KUBE-MARK-MASQ
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        -A KUBE-SERVICES -d 10.109.134.113/32 -p tcp -m comment --comment "default/nginx cluster IP" -m tcp --dport 8080 -j KUBE-SVC-2CMXP7HKUVJN7L6M
        -A KUBE-SVC-2CMXP7HKUVJN7L6M ! -s 10.244.0.0/16 -d 10.109.134.113/32 -p tcp -m comment --comment "default/nginx cluster IP" -m tcp --dport 8080 -j KUBE-MARK-MASQ
        -A KUBE-SVC-2CMXP7HKUVJN7L6M -m comment --comment "default/nginx" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-C2Y64IBVPH4YIBGX
        -A KUBE-SVC-2CMXP7HKUVJN7L6M -m comment --comment "default/nginx" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-QST3VAMBSCRN7S4W
        -A KUBE-SVC-2CMXP7HKUVJN7L6M -m comment --comment "default/nginx" -j KUBE-SEP-MRYDKJV5U7PLF5ZN
        "#,
    );
    // The chains of the API server and of DNS in the same documents.
    for chain in ["NPX46M4PTMTKRN6Y", "TCOU7JCQXEZGVUNU", "ERIFXISQEP7F7OF4", "JD5MR3NA4I4DYORP"] {
        assert!(text.contains(&format!("\n:KUBE-SVC-{chain} - [0:0]\n")), "{chain}");
    }
}
