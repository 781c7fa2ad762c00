//! Plans in, printed rules out.

use crate::Iptables;
use crate::fake::Fake;
use crate::variant::Variant;
use portway_dataplane::{Dataplane, LocalTraffic, NodePortAddresses, Settings};
use portway_model::{
    Family, Frontend, FrontendKind, PortPlan, Protocol, ServiceName, ServicePlan, Target, TrafficPolicy,
};
use std::collections::HashSet;
use std::net::SocketAddr;

fn settings() -> Settings {
    let ranges = ["10.244.0.0/16", "fd10:244::/32"].map(|r| r.parse().unwrap());
    Settings { local: LocalTraffic::Cidrs(ranges.into()), ..Settings::default() }
}

fn at(kind: FrontendKind, address: &str) -> Frontend {
    let at: SocketAddr = address.parse().unwrap();
    Frontend { kind, address: Some(at.ip()), port: at.port() }
}

fn cluster_ip(address: &str) -> Frontend {
    at(FrontendKind::ClusterIp, address)
}

fn node_port(port: u16) -> Frontend {
    Frontend { kind: FrontendKind::NodePort, address: None, port }
}

fn targets(endpoints: &[&str]) -> Box<[Target]> {
    let target = |text: &&str| {
        let at: SocketAddr = text.parse().unwrap();
        Target { ip: at.ip(), port: at.port() }
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
    ServicePlan { name, family, ports: ports.into(), health_check: None }
}

/// `default/web`, one port named `http`.
fn web(frontends: &[Frontend], endpoints: &[&str]) -> ServicePlan {
    service("default", "web", vec![port("http", Protocol::Tcp, frontends, endpoints)])
}

fn with(mut plan: ServicePlan, change: impl Fn(&mut PortPlan)) -> ServicePlan {
    plan.ports.iter_mut().for_each(change);
    plan
}

/// All rules that there should be.
fn wanted(family: Family, settings: &Settings, plans: Vec<ServicePlan>) -> String {
    let mut mode = Iptables::with_kernel(Fake::new(family, Variant::Legacy), family);
    let changes = plans.into_iter().map(|plan| (plan.name.clone(), Some(plan))).collect();
    let report = mode.sync(settings, changes).unwrap();
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    mode.wanted()
}

/// What a Service adds to them.
fn added(settings: &Settings, plan: ServicePlan) -> String {
    let family = plan.family;
    let base = wanted(family, settings, Vec::new());
    let base: HashSet<&str> = base.lines().filter(|line| !line.starts_with('*')).collect();
    let all = wanted(family, settings, vec![plan]);
    let own: Vec<&str> = all.lines().filter(|line| !base.contains(line)).collect();
    // Tables to which nothing is added are left out.
    let followed = |i: usize| own.get(i + 1).is_some_and(|next| !next.starts_with('*'));
    let lines = own.iter().enumerate().filter(|(i, line)| !line.starts_with('*') || followed(*i));
    lines.map(|(_, line)| format!("{line}\n")).collect()
}

fn has_all(text: &str, lines: &str) {
    let there: HashSet<&str> = text.lines().collect();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        assert!(there.contains(line), "`{line}` is missing in\n{text}");
    }
}

/// What administrators wrote down of kube-proxy's rules on their nodes.
#[test]
fn rules_that_administrators_know_are_there_to_the_letter() {
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
    let text = wanted(Family::V4, &settings(), plans);
    // Rules in everybody's chains are inserted, not appended.
    let text = text.replace("\n-I PREROUTING", "\n-A PREROUTING");
    has_all(
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
    // And their chains for the API server and for DNS.
    for chain in ["NPX46M4PTMTKRN6Y", "TCOU7JCQXEZGVUNU", "ERIFXISQEP7F7OF4", "JD5MR3NA4I4DYORP"] {
        assert!(text.contains(&format!("\n:KUBE-SVC-{chain} - [0:0]\n")), "{chain}");
    }
}

#[test]
fn what_is_there_without_a_service() {
    insta::assert_snapshot!(wanted(Family::V4, &settings(), Vec::new()), @r#"
    *nat
    :KUBE-SERVICES - [0:0]
    :KUBE-NODEPORTS - [0:0]
    :KUBE-MARK-MASQ - [0:0]
    :KUBE-POSTROUTING - [0:0]
    -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
    -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
    -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
    -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
    -A KUBE-SERVICES ! -d 127.0.0.0/8 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
    -I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
    -I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
    COMMIT
    *filter
    :KUBE-SERVICES - [0:0]
    :KUBE-EXTERNAL-SERVICES - [0:0]
    :KUBE-NODEPORTS - [0:0]
    :KUBE-FORWARD - [0:0]
    :KUBE-PROXY-FIREWALL - [0:0]
    :KUBE-CLUSTER-IPS - [0:0]
    -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
    -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
    -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    -A KUBE-CLUSTER-IPS -m comment --comment "not the address of any Service" -j DROP
    -I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
    -I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
    -I OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
    -I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
    -I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
    -I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
    -I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
    -I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
    -I INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
    -I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
    COMMIT
    *mangle
    :KUBE-PROXY-CANARY - [0:0]
    COMMIT
    "#);
}

#[test]
fn node_ports_with_policy_cluster() {
    let plan =
        web(&[cluster_ip("10.96.0.5:80"), node_port(30080)], &["10.244.1.10:8080", "10.244.2.20:8080"]);
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-EXT-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-GWQABTP5GBYXHJY5 - [0:0]
    :KUBE-SEP-JSM7SY6H3R2Z3REK - [0:0]
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.1.10:8080
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -s 10.244.2.20/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.2.20:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-JSM7SY6H3R2Z3REK
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-CDGGSHYLG3RE2FKL
    "#);
}

#[test]
fn node_ports_with_policy_local() {
    let plan =
        web(&[cluster_ip("10.96.0.5:80"), node_port(30080)], &["10.244.1.10:8080", "10.244.2.20:8080"]);
    let plan = with(plan, |port| {
        port.external = TrafficPolicy::Local;
        port.local = targets(&["10.244.1.10:8080"]);
    });
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SVL-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-EXT-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-GWQABTP5GBYXHJY5 - [0:0]
    :KUBE-SEP-JSM7SY6H3R2Z3REK - [0:0]
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.1.10:8080
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -s 10.244.2.20/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.2.20:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-JSM7SY6H3R2Z3REK
    -A KUBE-SVL-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -s 10.244.0.0/16 -m comment --comment "pod traffic for default/web:http external destinations" -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -j KUBE-SVL-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-CDGGSHYLG3RE2FKL
    "#);
}

#[test]
fn cluster_ips_with_policy_local() {
    let plan = web(&[cluster_ip("10.96.0.5:80")], &["10.244.1.10:8080", "10.244.2.20:8080"]);
    let plan = with(plan, |port| {
        port.internal = TrafficPolicy::Local;
        port.local = targets(&["10.244.1.10:8080"]);
    });
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *nat
    :KUBE-SVL-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-GWQABTP5GBYXHJY5 - [0:0]
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.1.10:8080
    -A KUBE-SVL-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVL-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVL-CDGGSHYLG3RE2FKL
    "#);
}

#[test]
fn a_load_balancer_with_source_ranges() {
    let lb = at(FrontendKind::LoadBalancer, "203.0.113.9:80");
    let plan = web(&[cluster_ip("10.96.0.5:80"), lb], &["10.244.1.10:8080"]);
    let plan = with(plan, |port| {
        port.source_ranges = ["192.0.2.0/24", "192.168.50.0/24"].map(|r| r.parse().unwrap()).into();
        port.admits_node = true;
    });
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-EXT-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-FW-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-GWQABTP5GBYXHJY5 - [0:0]
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.1.10:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-FW-CDGGSHYLG3RE2FKL -s 192.0.2.0/24 -m comment --comment "default/web:http loadbalancer IP" -j KUBE-EXT-CDGGSHYLG3RE2FKL
    -A KUBE-FW-CDGGSHYLG3RE2FKL -s 192.168.50.0/24 -m comment --comment "default/web:http loadbalancer IP" -j KUBE-EXT-CDGGSHYLG3RE2FKL
    -A KUBE-FW-CDGGSHYLG3RE2FKL -s 203.0.113.9/32 -m comment --comment "default/web:http loadbalancer IP" -j KUBE-EXT-CDGGSHYLG3RE2FKL
    -A KUBE-FW-CDGGSHYLG3RE2FKL -m comment --comment "other traffic to default/web:http will be dropped by KUBE-PROXY-FIREWALL"
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "default/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-CDGGSHYLG3RE2FKL
    *filter
    -A KUBE-PROXY-FIREWALL -d 203.0.113.9/32 -p tcp -m comment --comment "default/web:http traffic not accepted by KUBE-FW-CDGGSHYLG3RE2FKL" -m tcp --dport 80 -j DROP
    "#);
}

#[test]
fn clients_that_stick() {
    let plan = web(&[cluster_ip("10.96.0.5:80")], &["10.244.1.10:8080", "10.244.2.20:8080"]);
    let plan = with(plan, |port| port.affinity = Some(10800));
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-GWQABTP5GBYXHJY5 - [0:0]
    :KUBE-SEP-JSM7SY6H3R2Z3REK - [0:0]
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -p tcp -m comment --comment "default/web:http" -m recent --set --name KUBE-SEP-GWQABTP5GBYXHJY5 --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.1.10:8080
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -s 10.244.2.20/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -p tcp -m comment --comment "default/web:http" -m recent --set --name KUBE-SEP-JSM7SY6H3R2Z3REK --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.244.2.20:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-GWQABTP5GBYXHJY5 --mask 255.255.255.255 --rsource -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-JSM7SY6H3R2Z3REK --mask 255.255.255.255 --rsource -j KUBE-SEP-JSM7SY6H3R2Z3REK
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-JSM7SY6H3R2Z3REK
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    "#);
}

#[test]
fn no_endpoints() {
    let lb = at(FrontendKind::LoadBalancer, "203.0.113.9:80");
    let external = at(FrontendKind::ExternalIp, "198.18.0.1:80");
    let plan = web(&[cluster_ip("10.96.0.5:80"), lb, external, node_port(30080)], &[]);
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *filter
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 198.18.0.1/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES ! -d 127.0.0.0/8 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    "#);
}

#[test]
fn no_local_endpoints() {
    let lb = at(FrontendKind::LoadBalancer, "203.0.113.9:80");
    let plan = web(&[cluster_ip("10.96.0.5:80"), lb, node_port(30080)], &["10.244.2.20:8080"]);
    let plan = with(plan, |port| {
        port.internal = TrafficPolicy::Local;
        port.external = TrafficPolicy::Local;
    });
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-EXT-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-JSM7SY6H3R2Z3REK - [0:0]
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -s 10.244.2.20/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-JSM7SY6H3R2Z3REK -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.2.20:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-JSM7SY6H3R2Z3REK
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -s 10.244.0.0/16 -m comment --comment "pod traffic for default/web:http external destinations" -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "default/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-CDGGSHYLG3RE2FKL
    -A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-CDGGSHYLG3RE2FKL
    *filter
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http has no local endpoints" -m tcp --dport 80 -j DROP
    -A KUBE-EXTERNAL-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "default/web:http has no local endpoints" -m tcp --dport 80 -j DROP
    -A KUBE-EXTERNAL-SERVICES ! -d 127.0.0.0/8 -p tcp -m comment --comment "default/web:http has no local endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j DROP
    "#);
}

#[test]
fn a_port_for_health_checks() {
    let plan = web(&[cluster_ip("10.96.0.5:80")], &[]);
    let lines = added(&settings(), ServicePlan { health_check: Some(31000), ..plan });
    has_all(
        &lines,
        r#"-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web health check node port" -m tcp --dport 31000 -j ACCEPT"#,
    );
}

#[test]
fn six() {
    let lb = at(FrontendKind::LoadBalancer, "[2001:db8:113::1]:80");
    let plan = web(&[cluster_ip("[fd96::5]:80"), lb, node_port(30080)], &["[fd10:244:1::10]:8080"]);
    let plan = with(plan, |port| {
        port.affinity = Some(60);
        port.source_ranges = ["2001:db8:1::/64"].map(|r| r.parse().unwrap()).into();
    });
    insta::assert_snapshot!(added(&settings(), plan), @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-EXT-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-FW-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-XFTCM6545XHEFKGV - [0:0]
    -A KUBE-SEP-XFTCM6545XHEFKGV -s fd10:244:1::10/128 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-XFTCM6545XHEFKGV -p tcp -m comment --comment "default/web:http" -m recent --set --name KUBE-SEP-XFTCM6545XHEFKGV --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -m tcp -j DNAT --to-destination [fd10:244:1::10]:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s fd10:244::/32 -d fd96::5/128 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m recent --rcheck --seconds 60 --reap --name KUBE-SEP-XFTCM6545XHEFKGV --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j KUBE-SEP-XFTCM6545XHEFKGV
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-XFTCM6545XHEFKGV
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade traffic for default/web:http external destinations" -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-FW-CDGGSHYLG3RE2FKL -s 2001:db8:1::/64 -m comment --comment "default/web:http loadbalancer IP" -j KUBE-EXT-CDGGSHYLG3RE2FKL
    -A KUBE-FW-CDGGSHYLG3RE2FKL -m comment --comment "other traffic to default/web:http will be dropped by KUBE-PROXY-FIREWALL"
    -A KUBE-SERVICES -d fd96::5/128 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 2001:db8:113::1/128 -p tcp -m comment --comment "default/web:http loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-CDGGSHYLG3RE2FKL
    -A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-CDGGSHYLG3RE2FKL
    *filter
    -A KUBE-PROXY-FIREWALL -d 2001:db8:113::1/128 -p tcp -m comment --comment "default/web:http traffic not accepted by KUBE-FW-CDGGSHYLG3RE2FKL" -m tcp --dport 80 -j DROP
    "#);
    let none = web(&[cluster_ip("[fd96::5]:80"), node_port(30080)], &[]);
    insta::assert_snapshot!(added(&settings(), none), @r#"
    *filter
    -A KUBE-SERVICES -d fd96::5/128 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
    -A KUBE-EXTERNAL-SERVICES ! -d ::1/128 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with tcp-reset
    "#);
    let udp = service("default", "dns", vec![port("dns", Protocol::Udp, &[cluster_ip("[fd96::a]:53")], &[])]);
    insta::assert_snapshot!(added(&settings(), udp), @r#"
    *filter
    -A KUBE-SERVICES -d fd96::a/128 -p udp -m comment --comment "default/dns:dns has no endpoints" -m udp --dport 53 -j REJECT --reject-with icmp6-port-unreachable
    "#);
}

/// The rules in a chain.
fn of_chain(text: &str, chain: &str) -> String {
    let rules = text.lines().filter(|l| l.split(' ').nth(1) == Some(chain));
    rules.map(|line| format!("{line}\n")).collect()
}

#[test]
fn masquerade_all() {
    let plan = web(&[cluster_ip("10.96.0.5:80")], &["10.244.1.10:8080"]);
    let settings = Settings { masquerade_all: true, ..settings() };
    insta::assert_snapshot!(of_chain(&added(&settings, plan), "KUBE-SVC-CDGGSHYLG3RE2FKL"), @r#"
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-GWQABTP5GBYXHJY5
    "#);
}

#[test]
fn pods_told_by_their_interface_or_not_at_all() {
    let plan = || {
        let plan = web(&[cluster_ip("10.96.0.5:80"), node_port(30080)], &["10.244.1.10:8080"]);
        with(plan, |port| port.external = TrafficPolicy::Local)
    };
    let told = |local| {
        let text = added(&Settings { local, ..settings() }, plan());
        text.lines()
            .filter(|l| l.contains("-MARK-MASQ") || l.contains("-j KUBE-SVC"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    insta::assert_snapshot!(told(LocalTraffic::InterfacePrefix("veth".into())), @r#"
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -d 10.96.0.5/32 ! -i veth+ -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -i veth+ -m comment --comment "pod traffic for default/web:http external destinations" -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    "#);
    insta::assert_snapshot!(told(LocalTraffic::Interface("cni0".into())), @r#"
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -d 10.96.0.5/32 ! -i cni0 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -i cni0 -m comment --comment "pod traffic for default/web:http external destinations" -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    "#);
    insta::assert_snapshot!(told(LocalTraffic::Unknown), @r#"
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    "#);
}

#[test]
fn node_ports_at_127_0_0_1() {
    let settings = Settings { localhost_node_ports: true, ..settings() };
    let text = wanted(Family::V4, &settings, Vec::new());
    let without = wanted(Family::V4, &self::settings(), Vec::new());
    let other = |a: &str, b: &str| {
        let there: HashSet<&str> = b.lines().collect();
        a.lines().filter(|l| !there.contains(l)).map(|l| format!("{l}\n")).collect::<String>()
    };
    insta::assert_snapshot!(other(&text, &without), @r#"
    -A KUBE-POSTROUTING -m comment --comment "kubernetes node port traffic from localhost" -m conntrack --ctorigdst 127.0.0.0/8 -m nfacct --nfacct-name localhost_nps_accepted_pkts
    -A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    :KUBE-FIREWALL - [0:0]
    -I KUBE-FIREWALL -m comment --comment "route_localnet was off before, and goes off with this chain"
    -I KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
    -I OUTPUT -j KUBE-FIREWALL
    -I INPUT -j KUBE-FIREWALL
    "#);
    insta::assert_snapshot!(other(&without, &text), @r#"-A KUBE-SERVICES ! -d 127.0.0.0/8 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"#);
    let six = wanted(Family::V6, &settings, Vec::new());
    assert_eq!(six, wanted(Family::V6, &self::settings(), Vec::new()), "only in IPv4");
}

#[test]
fn node_ports_at_some_addresses() {
    let within = |ranges: &[&str]| {
        let ranges = ranges.iter().map(|r| r.parse().unwrap()).collect();
        Settings { node_ports: NodePortAddresses::Within(ranges), ..settings() }
    };
    let told = |settings: &Settings, family| {
        let plan = match family {
            Family::V4 => web(&[cluster_ip("10.96.0.5:80"), node_port(30080)], &[]),
            Family::V6 => web(&[cluster_ip("[fd96::5]:80"), node_port(30080)], &[]),
        };
        let text = wanted(family, settings, vec![plan]);
        let lines = text.lines().filter(|l| l.starts_with("-A") && l.contains("--dst-type LOCAL"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let some = within(&["192.168.50.0/24", "172.31.0.11/32"]);
    insta::assert_snapshot!(told(&some, Family::V4), @r#"
    -A KUBE-SERVICES -d 172.31.0.11/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-SERVICES -d 192.168.50.0/24 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-EXTERNAL-SERVICES -d 172.31.0.11/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 192.168.50.0/24 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    "#);
    assert_eq!(told(&some, Family::V6), "", "a family without a range answers nowhere");
    // 127.0.0.0/8 lies within, and is not meant.
    let wide = within(&["96.0.0.0/3"]);
    insta::assert_snapshot!(told(&wide, Family::V4), @r#"
    -A KUBE-SERVICES -d 96.0.0.0/4 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-SERVICES -d 112.0.0.0/5 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-SERVICES -d 120.0.0.0/6 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-SERVICES -d 124.0.0.0/7 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-SERVICES -d 126.0.0.0/8 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-EXTERNAL-SERVICES -d 96.0.0.0/4 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 112.0.0.0/5 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 120.0.0.0/6 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 124.0.0.0/7 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 126.0.0.0/8 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    "#);
    let wide = Settings { localhost_node_ports: true, ..wide };
    insta::assert_snapshot!(told(&wide, Family::V4), @r#"
    -A KUBE-SERVICES -d 96.0.0.0/3 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-EXTERNAL-SERVICES -d 96.0.0.0/3 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    "#);
    // All addresses, in a word.
    let all = |family| told(&settings(), family);
    assert_eq!(told(&within(&["0.0.0.0/0"]), Family::V4), all(Family::V4));
    assert_eq!(told(&within(&["::/0"]), Family::V6), all(Family::V6));
}

#[test]
fn ranges_of_service_addresses() {
    let ranges = ["10.96.0.0/16", "fd96::/112"].map(|r| r.parse().unwrap());
    let settings = Settings { service_cidrs: ranges.into(), ..settings() };
    let plan = || web(&[cluster_ip("10.96.0.5:80")], &["10.244.1.10:8080"]);
    let text = wanted(Family::V4, &settings, vec![plan()]);
    let (_, filter) = text.split_once("*filter").unwrap();
    insta::assert_snapshot!(of_chain(filter, "KUBE-SERVICES") + &of_chain(filter, "KUBE-CLUSTER-IPS"), @r#"
    -A KUBE-SERVICES -d 10.96.0.0/16 -m comment --comment "Service addresses without a Service\'s port" -j KUBE-CLUSTER-IPS
    -A KUBE-CLUSTER-IPS -d 10.96.0.5/32 -m comment --comment "default/web has no such port" -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-CLUSTER-IPS -m comment --comment "not the address of any Service" -j DROP
    "#);
    let six =
        wanted(Family::V6, &settings, vec![web(&[cluster_ip("[fd96::5]:80")], &["[fd10:244:1::10]:8080"])]);
    insta::assert_snapshot!(of_chain(&six, "KUBE-CLUSTER-IPS"), @r#"
    -A KUBE-CLUSTER-IPS -d fd96::5/128 -p tcp -m comment --comment "default/web has no such port" -j REJECT --reject-with tcp-reset
    -A KUBE-CLUSTER-IPS -d fd96::5/128 -p udp -m comment --comment "default/web has no such port" -j REJECT --reject-with icmp6-port-unreachable
    -A KUBE-CLUSTER-IPS -d fd96::5/128 -p sctp -m comment --comment "default/web has no such port" -j REJECT --reject-with icmp6-port-unreachable
    -A KUBE-CLUSTER-IPS -m comment --comment "not the address of any Service" -j DROP
    "#);
}
