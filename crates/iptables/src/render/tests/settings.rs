//! Rules that depend on the node's settings.

use super::{all_rules, cluster_ip, node_port, service_rules, settings, web, with};
use portway_dataplane::{LocalTraffic, NodePortAddresses, Settings};
use portway_model::{Family, TrafficPolicy};

#[test]
fn constant_rules() {
    insta::assert_snapshot!(all_rules(Family::V4, &settings(), Vec::new()), @r#"
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
    -A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
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

/// The rules of a chain.
fn chain_rules(text: &str, chain: &str) -> String {
    let rules = text.lines().filter(|l| l.split(' ').nth(1) == Some(chain));
    rules.map(|line| format!("{line}\n")).collect()
}

#[test]
fn masquerade_all() {
    let plan = web(&[cluster_ip("10.96.0.5:80")], &["10.244.1.10:8080"]);
    let settings = Settings { masquerade_all: true, ..settings() };
    insta::assert_snapshot!(chain_rules(&service_rules(&settings, plan), "KUBE-SVC-CDGGSHYLG3RE2FKL"), @r#"
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-GWQABTP5GBYXHJY5
    "#);
}

#[test]
fn pods_recognised_by_interface_or_not_at_all() {
    let plan = || {
        let plan = web(&[cluster_ip("10.96.0.5:80"), node_port(30080)], &["10.244.1.10:8080"]);
        with(plan, |port| port.external = TrafficPolicy::Local)
    };
    let rules = |local| {
        let text = service_rules(&Settings { local, ..settings() }, plan());
        text.lines()
            .filter(|l| l.contains("-MARK-MASQ") || l.contains("-j KUBE-SVC"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    insta::assert_snapshot!(rules(LocalTraffic::InterfacePrefix("veth".into())), @r#"
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -d 10.96.0.5/32 ! -i veth+ -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -i veth+ -m comment --comment "pod traffic for default/web:http external destinations" -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    "#);
    insta::assert_snapshot!(rules(LocalTraffic::Interface("cni0".into())), @r#"
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -d 10.96.0.5/32 ! -i cni0 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -i cni0 -m comment --comment "pod traffic for default/web:http external destinations" -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    "#);
    insta::assert_snapshot!(rules(LocalTraffic::Unknown), @r#"
    -A KUBE-SEP-GWQABTP5GBYXHJY5 -s 10.244.1.10/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
    -A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "route LOCAL traffic for default/web:http external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    "#);
}

#[test]
fn node_ports_at_addresses_within_ranges() {
    let within = |ranges: &[&str]| {
        let ranges = ranges.iter().map(|r| r.parse().unwrap()).collect();
        Settings { node_ports: NodePortAddresses::Within(ranges), ..settings() }
    };
    let rules = |settings: &Settings, family| {
        let plan = match family {
            Family::V4 => web(&[cluster_ip("10.96.0.5:80"), node_port(30080)], &[]),
            Family::V6 => web(&[cluster_ip("[fd96::5]:80"), node_port(30080)], &[]),
        };
        let text = all_rules(family, settings, vec![plan]);
        let lines = text.lines().filter(|l| l.starts_with("-A") && l.contains("--dst-type LOCAL"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let some = within(&["192.168.50.0/24", "172.31.0.11/32"]);
    insta::assert_snapshot!(rules(&some, Family::V4), @r#"
    -A KUBE-SERVICES -d 172.31.0.11/32 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-SERVICES -d 192.168.50.0/24 -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
    -A KUBE-EXTERNAL-SERVICES -d 172.31.0.11/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 192.168.50.0/24 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    "#);
    assert_eq!(rules(&some, Family::V6), "", "node ports of a family without a range do not answer");
    // The range contains 127.0.0.0/8, where node ports do not answer.
    let wide = within(&["96.0.0.0/3"]);
    insta::assert_snapshot!(rules(&wide, Family::V4), @r#"
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
    // A range of all addresses has the same rules as no range.
    let all = |family| rules(&settings(), family);
    assert_eq!(rules(&within(&["0.0.0.0/0"]), Family::V4), all(Family::V4));
    assert_eq!(rules(&within(&["::/0"]), Family::V6), all(Family::V6));
}

#[test]
fn service_cidrs() {
    let ranges = ["10.96.0.0/16", "fd96::/112"].map(|r| r.parse().unwrap());
    let settings = Settings { service_cidrs: ranges.into(), ..settings() };
    let plan = || web(&[cluster_ip("10.96.0.5:80")], &["10.244.1.10:8080"]);
    let text = all_rules(Family::V4, &settings, vec![plan()]);
    let (_, filter) = text.split_once("*filter").unwrap();
    insta::assert_snapshot!(chain_rules(filter, "KUBE-SERVICES") + &chain_rules(filter, "KUBE-CLUSTER-IPS"), @r#"
    -A KUBE-SERVICES -d 10.96.0.0/16 -m comment --comment "Service addresses without a Service\'s port" -j KUBE-CLUSTER-IPS
    -A KUBE-CLUSTER-IPS -d 10.96.0.5/32 -m comment --comment "default/web has no such port" -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-CLUSTER-IPS -m comment --comment "not the address of any Service" -j DROP
    "#);
    let six = all_rules(
        Family::V6,
        &settings,
        vec![web(&[cluster_ip("[fd96::5]:80")], &["[fd10:244:1::10]:8080"])],
    );
    insta::assert_snapshot!(chain_rules(&six, "KUBE-CLUSTER-IPS"), @r#"
    -A KUBE-CLUSTER-IPS -d fd96::5/128 -p tcp -m comment --comment "default/web has no such port" -j REJECT --reject-with tcp-reset
    -A KUBE-CLUSTER-IPS -d fd96::5/128 -p udp -m comment --comment "default/web has no such port" -j REJECT --reject-with icmp6-port-unreachable
    -A KUBE-CLUSTER-IPS -d fd96::5/128 -p sctp -m comment --comment "default/web has no such port" -j REJECT --reject-with icmp6-port-unreachable
    -A KUBE-CLUSTER-IPS -m comment --comment "not the address of any Service" -j DROP
    "#);
}
