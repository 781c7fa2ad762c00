//! What the kernel will not have is left out, and said; the rest is programmed.

use crate::node::mode;
use portway_dataplane::world::{World, endpoint, settings};
use portway_dataplane::{Dataplane, IpvsSettings, Settings};
use portway_ipvs::sets::Set;
use portway_model::Family;
use serde_json::json;

fn port(name: &str) -> serde_json::Value {
    json!({"name": name, "port": 8080})
}

/// Two Services of two endpoints each.
fn two() -> World {
    World::new()
        .service("web", 1, json!({}), json!({}))
        .slice("web", &[endpoint("a"), endpoint("b")])
        .service("other", 2, json!({}), json!({}))
        .slice("other", &[endpoint("a")])
}

#[test]
fn an_endpoint_that_is_refused_is_left_out_and_the_others_serve() {
    let mut world = two();
    let mut mode = mode(Family::V4);
    let b = portway_dataplane::world::address(Family::V4, "b");
    mode.kernel().no_targets.insert(b);
    let report = mode.sync(&settings(), world.all(Family::V4)).unwrap();
    let refused: Vec<String> = report.refused.iter().map(|r| r.service.to_string()).collect();
    assert_eq!(refused, ["default/web"]);
    let behind: Vec<usize> = mode.kernel().servers.values().map(|s| s.targets.len()).collect();
    assert_eq!(behind, [1, 1]);
    assert!(mode.verify().unwrap().is_empty() && !mode.looks_different());
    // Nobody is told twice, and a change of another Service is a change.
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.refused.is_empty() && !report.full);
    // When the Service changes, it is tried again.
    mode.kernel().no_targets.clear();
    world.apply_slice("web", port("http"), &[endpoint("b"), endpoint("c")]);
    let report = mode.sync(&settings(), world.changes(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && !report.full, "{report:?}");
    let behind: Vec<usize> = mode.kernel().servers.values().map(|s| s.targets.len()).collect();
    assert_eq!(behind.iter().sum::<usize>(), 4, "two, one, and one that drains");
}

#[test]
fn a_server_that_is_refused_is_refused_to_clients_too() {
    let mut world = two();
    let sctp = json!({"ports": [{"name": "http", "port": 80, "protocol": "SCTP"}]});
    world.apply_service("odd", 3, sctp, json!({}));
    world.apply_slice("odd", json!({"name": "http", "port": 8080, "protocol": "SCTP"}), &[endpoint("a")]);
    let mut mode = mode(Family::V4);
    mode.kernel().no_protocols.insert(132);
    let report = mode.sync(&settings(), world.all(Family::V4)).unwrap();
    assert_eq!(report.refused.len(), 1);
    assert!(report.refused[0].reason.contains("Protocol not supported"), "{}", report.refused[0].reason);
    assert_eq!(mode.kernel().servers.len(), 2);
    assert_eq!(mode.kernel().sets[Set::NoEndpoints.name(Family::V4)].members.len(), 1);
    assert_eq!(mode.kernel().resets, Vec::<String>::new());
    assert!(mode.verify().unwrap().is_empty());
}

#[test]
fn a_scheduler_that_is_missing_is_replaced_and_the_configured_one_is_needed() {
    let mut world = two();
    let mut mode = mode(Family::V4);
    mode.kernel().no_schedulers.insert("mh".to_owned());
    let plans = world.all(Family::V4).into_iter().map(|(name, plan)| {
        let asks = name.name() == "web";
        (name, plan.map(|plan| portway_model::ServicePlan { scheduler: asks.then(|| "mh".into()), ..plan }))
    });
    let report = mode.sync(&settings(), plans.collect()).unwrap();
    assert_eq!(report.otherwise.len(), 1);
    assert!(report.otherwise[0].reason.contains("modprobe ip_vs_mh"), "{}", report.otherwise[0].reason);
    assert!(mode.kernel().servers.values().all(|s| s.server.scheduler == "rr"));
    // There is nothing to fall back to.
    let ipvs =
        IpvsSettings { scheduler: portway_dataplane::Scheduler::MaglevHashing, ..IpvsSettings::default() };
    let error = mode.sync(&Settings { ipvs, ..settings() }, Vec::new());
    assert!(error.is_err());
    assert_eq!(mode.kernel().servers.len(), 2, "what was there stays");
}
