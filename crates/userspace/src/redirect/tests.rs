//! Plans before and after redirection.

use super::*;
use portway_model::{Family, FrontendKind, Outcome};
use portway_testkit::cluster::{TestCluster, service};
use portway_testkit::objects::Endpoint;
use serde_json::json;

pub(crate) const LISTENERS: ListenerPorts = ListenerPorts {
    address: IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 50, 11)),
    tcp: [4001, 4002],
    udp: [5001, 5002],
};

/// The plan of a Service with ready endpoints on these hosts and this spec.
fn planned(hosts: &[&str], spec: serde_json::Value) -> ServicePlan {
    let web = service("web", 1).spec(spec);
    let mut cluster = TestCluster::new().service(web).slice("web", &Endpoint::all(hosts));
    let (_, plan) = cluster.all(Family::V4).swap_remove(0);
    plan.expect("a plan")
}

pub(crate) fn web() -> ServicePlan {
    planned(
        &["a", "c"],
        json!({"type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 30001}]}),
    )
}

fn local_policy(hosts: &[&str]) -> ServicePlan {
    let spec = json!({"type": "NodePort", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
        "ports": [{"name": "http", "port": 80, "nodePort": 30001}]});
    to_listeners(&planned(hosts, spec), &LISTENERS)
}

fn listener(port: u16) -> Target {
    Target { ip: LISTENERS.address, port }
}

#[test]
fn listeners_replace_endpoints_and_the_rest_stays() {
    let (plan, redirected) = (web(), to_listeners(&web(), &LISTENERS));
    assert_eq!(*redirected.ports[0].cluster, [listener(4001)]);
    assert_eq!(redirected.ports[0].frontends, plan.ports[0].frontends);
    assert_eq!((&redirected.name, redirected.health_check), (&plan.name, plan.health_check));
    assert!(redirected.ports[0].here.is_empty() && redirected.ports[0].also_serving.is_empty());
    let udp = planned(&["a"], json!({"ports": [{"name": "http", "port": 53, "protocol": "UDP"}]}));
    // The slice has a TCP port only, so the UDP port has no endpoints.
    assert!(to_listeners(&udp, &LISTENERS).ports[0].cluster.is_empty());
}

#[test]
fn udp_flows_may_have_endpoints_while_the_relay_serves_and_listeners_while_it_hands_over() {
    let mut plan = web();
    plan.ports[0].protocol = Protocol::Udp;
    let endpoints = plan.ports[0].cluster.to_vec();
    assert!(!endpoints.is_empty());
    let port = &to_listeners(&plan, &LISTENERS).ports[0];
    assert_eq!((&port.cluster[..], &port.also_serving[..]), (&[listener(5001)][..], &endpoints[..]));
    let port = &to_endpoints_with_listeners(&plan, &LISTENERS).ports[0];
    assert_eq!(
        (&port.cluster[..], &port.also_serving[..]),
        (&endpoints[..], &[listener(5001), listener(5002)][..])
    );
}

#[test]
fn with_policy_local_each_scope_has_its_listener() {
    let plan = local_policy(&["a", "c"]);
    let port = &plan.ports[0];
    assert_eq!(port.outcome(FrontendKind::NodePort), Outcome::Balance(&[listener(4002)]));
    assert_eq!(port.short_cut(FrontendKind::NodePort), Some(&[listener(4001)][..]));
    assert_eq!(port.outcome(FrontendKind::ClusterIp), Outcome::Balance(&[listener(4001)]));
    // The relay keeps session affinity, not the rules.
    assert_eq!(port.affinity, None);
}

#[test]
fn frontends_without_endpoints_are_still_rejected_or_dropped() {
    let without_local = local_policy(&["c"]);
    assert_eq!(without_local.ports[0].outcome(FrontendKind::NodePort), Outcome::Drop);
    let empty = local_policy(&[]);
    assert_eq!(empty.ports[0].outcome(FrontendKind::NodePort), Outcome::Reject);
    assert_eq!(empty.ports[0].outcome(FrontendKind::ClusterIp), Outcome::Reject);
}

#[test]
fn a_protocol_that_is_not_relayed_keeps_its_endpoints() {
    let sctp = portway_model::Protocol::Sctp;
    let mut cluster = TestCluster::new().service(service("web", 1).protocol(sctp));
    cluster.apply_slice("web", ("http", sctp, 8080), &Endpoint::all(&["a"]));
    let (_, plan) = cluster.all(Family::V4).swap_remove(0);
    let plan = plan.expect("a plan");
    assert!(!plan.ports[0].cluster.is_empty());
    assert_eq!(to_listeners(&plan, &LISTENERS), plan);
}

#[test]
fn without_a_relay_pods_that_expect_a_header_get_no_connection() {
    let mut plan = web();
    assert_eq!((wants_proxy_header(&plan), to_endpoints(&plan)), (Ok(false), plan.clone()));
    plan.proxy_protocol = Some("v2".into());
    assert_eq!(wants_proxy_header(&plan), Ok(true));
    assert_eq!(to_endpoints(&plan).ports[0].outcome(FrontendKind::ClusterIp), Outcome::Reject);
    plan.proxy_protocol = Some("v3".into());
    assert!(
        wants_proxy_header(&plan)
            .is_err_and(|reason| reason.contains("portway.dev/proxy-protocol") && reason.contains("v3"))
    );
    assert_eq!(to_endpoints(&plan), plan);
}
