//! What the kernel will not have is left out, and said; the rest is programmed.

use crate::node::mode;
use ipnet::IpNet;
use portway_dataplane::world::{World, address, endpoint, own_addresses, settings};
use portway_dataplane::{Dataplane, IpvsSettings, Scheduler, Settings};
use portway_ipvs::sets::Set;
use portway_model::Family;
use portway_netlink::route::{Address, Event};
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
    let b = address(Family::V4, "b");
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
    // A configured one that is missing is not used either.
    let ipvs = IpvsSettings { scheduler: Scheduler::MaglevHashing, ..IpvsSettings::default() };
    let report = mode.sync(&Settings { ipvs, ..settings() }, Vec::new()).unwrap();
    let words = report.afterthoughts.join("");
    assert!(words.contains("modprobe ip_vs_mh") && words.contains("rr stays"), "{words}");
    assert!(mode.kernel().servers.values().all(|s| s.server.scheduler == "rr"));
}

#[test]
fn what_the_kernel_holds_otherwise_than_we_thought_is_nobodys_fault() {
    let mut world = two();
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), world.all(Family::V4)).unwrap();
    // Somebody clears all servers, and before that is noticed an endpoint changes.
    mode.kernel().servers.clear();
    world.apply_slice("web", port("http"), &[endpoint("b"), endpoint("c")]);
    let report = mode.sync(&settings(), world.changes(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && report.full, "{report:?}");
    assert_eq!(mode.kernel().servers.len(), 2);
    assert!(mode.kernel().sets[Set::NoEndpoints.name(Family::V4)].members.is_empty());
}

#[test]
fn a_node_port_and_an_external_ip_may_be_one_server() {
    let own = own_addresses(Family::V4)[0].to_string();
    let spec = json!({"type": "NodePort", "externalIPs": [own],
        "ports": [{"name": "http", "port": 30007, "nodePort": 30007}]});
    let mut world = World::new().service("web", 1, spec, json!({})).slice("web", &[endpoint("a")]);
    let mut mode = mode(Family::V4);
    let report = mode.sync(&settings(), world.all(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && report.otherwise.is_empty(), "{report:?}");
    assert!(mode.verify().unwrap().is_empty() && !mode.looks_different());
}

#[test]
fn of_two_services_that_want_one_server_one_waits_until_the_other_goes() {
    let own = own_addresses(Family::V4)[0];
    let by_address = json!({"externalIPs": [own.to_string()], "ports": [{"name": "http", "port": 30007}]});
    let by_port = json!({"type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 30007}]});
    let mut world = World::new().service("first", 1, by_address, json!({})).slice("first", &[endpoint("a")]);
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), world.all(Family::V4)).unwrap();
    world.apply_service("another", 2, by_port, json!({}));
    world.apply_slice("another", port("http"), &[endpoint("c")]);
    let served_by = |mode: &mut crate::node::Mode| {
        let at = mode.kernel().servers.iter().find(|(key, _)| key.address == own && key.port == 30007);
        let takes = at.unwrap().1.targets.iter().filter(|(_, behind)| behind.share > 0);
        takes.map(|(target, _)| target.ip).collect::<Vec<_>>()
    };
    let report = mode.sync(&settings(), world.changes(Family::V4)).unwrap();
    assert_eq!(served_by(&mut mode), [address(Family::V4, "a")], "who had it keeps it");
    let said: Vec<String> = report.otherwise.iter().map(|o| format!("{}: {}", o.service, o.reason)).collect();
    assert_eq!(
        said,
        [format!("default/another: TCP {own}:30007 is served for Service default/first already")]
    );
    // That is said once.
    mode.distrust();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.otherwise.is_empty() && report.drift.is_empty(), "{report:?}");
    world.delete("first");
    mode.sync(&settings(), world.changes(Family::V4)).unwrap();
    assert_eq!(served_by(&mut mode), [address(Family::V4, "c")]);
    assert!(!mode.looks_different() && mode.verify().unwrap().is_empty());
}

#[test]
fn an_address_that_the_node_loses_takes_its_servers_along_and_disturbs_nothing_else() {
    let spec = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
        "ports": [{"name": "http", "port": 80, "nodePort": 30001}]});
    let mut world =
        World::new().service("web", 1, spec, json!({})).slice("web", &[endpoint("a"), endpoint("c")]);
    let mut mode = mode(Family::V4);
    let extra: std::net::IpAddr = "192.168.50.99".parse().unwrap();
    mode.kernel().own.insert(extra);
    mode.sync(&settings(), world.all(Family::V4)).unwrap();
    let at_extra =
        |mode: &mut crate::node::Mode| mode.kernel().servers.keys().filter(|k| k.address == extra).count();
    let marks = |mode: &mut crate::node::Mode| mode.kernel().servers.keys().map(|k| k.fwmark).max();
    assert_eq!(at_extra(&mut mode), 1);
    let mark = marks(&mut mode);
    mode.kernel().own.remove(&extra);
    mode.kernel().events.push(Event::Address { added: false, address: Address::new(2, IpNet::from(extra)) });
    assert!(mode.hears_of_changes());
    mode.distrust();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.drift.is_empty(), "nobody changed what is ours: {}", report.drift);
    assert_eq!(at_extra(&mut mode), 0);
    assert_eq!(marks(&mut mode), mark);
    assert!(mode.kernel().resets.is_empty());
}

/// Nobody tells of a change twice.
#[test]
fn a_change_is_made_though_addresses_could_not_be_listed_when_it_came() {
    let mut world = two();
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), world.all(Family::V4)).unwrap();
    mode.kernel().own_is_secret = true;
    let came = Address::new(99, IpNet::from(address(Family::V4, "c")));
    mode.kernel().events.push(Event::Address { added: true, address: came });
    assert!(mode.hears_of_changes());
    world.apply_slice("other", port("http"), &[endpoint("b"), endpoint("c")]);
    assert!(mode.sync(&settings(), world.changes(Family::V4)).is_err());
    mode.kernel().own_is_secret = false;
    mode.sync(&settings(), Vec::new()).unwrap();
    let behind: usize = mode.kernel().servers.values().map(|s| s.targets.len()).sum();
    assert_eq!(behind, 4, "two of each: nobody has connections to drain");
    assert!(mode.verify().unwrap().is_empty());
}
