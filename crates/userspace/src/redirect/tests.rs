//! Plans before and after.

use super::*;
use portway_dataplane::world::{World, endpoint};
use portway_model::{Family, FrontendKind, Outcome};
use serde_json::json;

const DOORS: Doors = Doors {
    address: IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 50, 11)),
    tcp: [4001, 4002],
    udp: [5001, 5002],
};

/// The plan of a Service with these endpoints and spec.
fn planned(places: &[&str], spec: serde_json::Value) -> ServicePlan {
    let endpoints: Vec<_> = places.iter().map(|place| endpoint(place)).collect();
    let mut world = World::new().service("web", 1, spec, json!({})).slice("web", &endpoints);
    let (_, plan) = world.all(Family::V4).swap_remove(0);
    plan.expect("a plan")
}

pub(crate) fn web() -> ServicePlan {
    planned(
        &["a", "c"],
        json!({"type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 30001}]}),
    )
}

fn local(places: &[&str]) -> ServicePlan {
    let spec = json!({"type": "NodePort", "externalTrafficPolicy": "Local", "sessionAffinity": "ClientIP",
        "ports": [{"name": "http", "port": 80, "nodePort": 30001}]});
    to_doors(&planned(places, spec), &DOORS)
}

fn door(port: u16) -> Target {
    Target { ip: DOORS.address, port }
}

#[test]
fn endpoints_are_doors_and_all_else_stays() {
    let (plan, led) = (web(), to_doors(&web(), &DOORS));
    assert_eq!(*led.ports[0].cluster, [door(4001)]);
    assert_eq!(led.ports[0].frontends, plan.ports[0].frontends);
    assert_eq!((&led.name, led.health_check), (&plan.name, plan.health_check));
    assert!(led.ports[0].here.is_empty() && led.ports[0].also_serving.is_empty());
    let udp = planned(&["a"], json!({"ports": [{"name": "http", "port": 53, "protocol": "UDP"}]}));
    // The slice's port is one of TCP, so this one has nobody.
    assert!(to_doors(&udp, &DOORS).ports[0].cluster.is_empty());
}

#[test]
fn with_policy_local_each_choice_has_its_door() {
    let plan = local(&["a", "c"]);
    let port = &plan.ports[0];
    assert_eq!(port.outcome(FrontendKind::NodePort), Outcome::Balance(&[door(4002)]));
    assert_eq!(port.short_cut(FrontendKind::NodePort), Some(&[door(4001)][..]));
    assert_eq!(port.outcome(FrontendKind::ClusterIp), Outcome::Balance(&[door(4001)]));
    // Whom a client sticks to is known behind the door.
    assert_eq!(port.affinity, None);
}

#[test]
fn who_is_refused_or_dropped_stays_so() {
    let nowhere_here = local(&["c"]);
    assert_eq!(nowhere_here.ports[0].outcome(FrontendKind::NodePort), Outcome::Drop);
    let nobody = local(&[]);
    assert_eq!(nobody.ports[0].outcome(FrontendKind::NodePort), Outcome::Reject);
    assert_eq!(nobody.ports[0].outcome(FrontendKind::ClusterIp), Outcome::Reject);
}

#[test]
fn what_is_not_carried_is_led_by_the_kernel() {
    let spec = json!({"ports": [{"name": "http", "port": 80, "protocol": "SCTP"}]});
    let endpoints = [endpoint("a")];
    let mut world = World::new().service("web", 1, spec, json!({}));
    world.apply_slice("web", json!({"name": "http", "port": 8080, "protocol": "SCTP"}), &endpoints);
    let (_, plan) = world.all(Family::V4).swap_remove(0);
    let plan = plan.expect("a plan");
    assert!(!plan.ports[0].cluster.is_empty());
    assert_eq!(to_doors(&plan, &DOORS), plan);
}

#[test]
fn pods_that_expect_a_header_get_no_connection_without_one() {
    let mut plan = web();
    assert_eq!((wants_header(&plan), to_endpoints(&plan)), (Ok(false), plan.clone()));
    plan.proxy_protocol = Some("v2".into());
    assert_eq!(wants_header(&plan), Ok(true));
    assert_eq!(to_endpoints(&plan).ports[0].outcome(FrontendKind::ClusterIp), Outcome::Reject);
    plan.proxy_protocol = Some("v3".into());
    assert!(
        wants_header(&plan)
            .is_err_and(|why| why.contains("portway.dev/proxy-protocol") && why.contains("v3"))
    );
    assert_eq!(to_endpoints(&plan), plan);
}
