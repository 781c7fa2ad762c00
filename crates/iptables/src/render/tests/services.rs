//! The rules that Services of each kind add.

use super::{
    assert_contains_lines, cluster_ip, frontend, node_port, port, service, service_rules, settings, targets,
    web, with,
};
use portway_model::{FrontendKind, Protocol, ServicePlan, TrafficPolicy};

#[test]
fn node_ports_with_policy_cluster() {
    let plan =
        web(&[cluster_ip("10.96.0.5:80"), node_port(30080)], &["10.244.1.10:8080", "10.244.2.20:8080"]);
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
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
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
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
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
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
    let lb = frontend(FrontendKind::LoadBalancer, "203.0.113.9:80");
    let plan = web(&[cluster_ip("10.96.0.5:80"), lb], &["10.244.1.10:8080"]);
    let plan = with(plan, |port| {
        port.source_ranges = ["192.0.2.0/24", "192.168.50.0/24"].map(|r| r.parse().unwrap()).into();
        port.admits_node = true;
    });
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
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
fn session_affinity() {
    let plan = web(&[cluster_ip("10.96.0.5:80")], &["10.244.1.10:8080", "10.244.2.20:8080"]);
    let plan = with(plan, |port| port.affinity = Some(10800));
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
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
    let lb = frontend(FrontendKind::LoadBalancer, "203.0.113.9:80");
    let external = frontend(FrontendKind::ExternalIp, "198.18.0.1:80");
    let plan = web(&[cluster_ip("10.96.0.5:80"), lb, external, node_port(30080)], &[]);
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
    *filter
    -A KUBE-SERVICES -d 10.96.0.5/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES -d 198.18.0.1/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    -A KUBE-EXTERNAL-SERVICES ! -d 127.0.0.0/8 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable
    "#);
}

#[test]
fn no_local_endpoints() {
    let lb = frontend(FrontendKind::LoadBalancer, "203.0.113.9:80");
    let plan = web(&[cluster_ip("10.96.0.5:80"), lb, node_port(30080)], &["10.244.2.20:8080"]);
    let plan = with(plan, |port| {
        port.internal = TrafficPolicy::Local;
        port.external = TrafficPolicy::Local;
    });
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
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
fn a_health_check_node_port() {
    let plan = web(&[cluster_ip("10.96.0.5:80")], &[]);
    let lines = service_rules(&settings(), ServicePlan { health_check: Some(31000), ..plan });
    assert_contains_lines(
        &lines,
        r#"-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web health check node port" -m tcp --dport 31000 -j ACCEPT"#,
    );
}

#[test]
fn ipv6() {
    let lb = frontend(FrontendKind::LoadBalancer, "[2001:db8:113::1]:80");
    let plan = web(&[cluster_ip("[fd96::5]:80"), lb, node_port(30080)], &["[fd10:244:1::10]:8080"]);
    let plan = with(plan, |port| {
        port.affinity = Some(60);
        port.source_ranges = ["2001:db8:1::/64"].map(|r| r.parse().unwrap()).into();
    });
    insta::assert_snapshot!(service_rules(&settings(), plan), @r#"
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
    insta::assert_snapshot!(service_rules(&settings(), none), @r#"
    *filter
    -A KUBE-SERVICES -d fd96::5/128 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
    -A KUBE-EXTERNAL-SERVICES ! -d ::1/128 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT --reject-with tcp-reset
    "#);
    let udp = service("default", "dns", vec![port("dns", Protocol::Udp, &[cluster_ip("[fd96::a]:53")], &[])]);
    insta::assert_snapshot!(service_rules(&settings(), udp), @r#"
    *filter
    -A KUBE-SERVICES -d fd96::a/128 -p udp -m comment --comment "default/dns:dns has no endpoints" -m udp --dport 53 -j REJECT --reject-with icmp6-port-unreachable
    "#);
}
