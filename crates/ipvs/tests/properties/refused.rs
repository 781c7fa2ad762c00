//! Objects that the kernel refuses are left out and reported; the others are written.

use crate::node::mode;
use ipnet::IpNet;
use portway_dataplane::{IpvsSettings, Scheduler, Settings};
use portway_ipvs::drift::sample;
use portway_ipvs::sets::Set;
use portway_model::{Family, Protocol};
use portway_netlink::route::{Address, Event};
use portway_testkit::cluster::{TestCluster, address, own_addresses, service, settings};
use portway_testkit::objects::Endpoint;

/// Two Services of two endpoints each.
fn two() -> TestCluster {
    TestCluster::new()
        .service(service("web", 1))
        .slice("web", &Endpoint::all(&["a", "b"]))
        .service(service("other", 2))
        .slice("other", &Endpoint::all(&["a"]))
}

#[test]
fn a_refused_endpoint_is_left_out_and_the_others_serve() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    let b = address(Family::V4, "b");
    mode.program().kernel().refused_targets.insert(b);
    let report = mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    let refused: Vec<String> = report.refused.iter().map(|r| r.service.to_string()).collect();
    assert_eq!(refused, ["default/web"]);
    let targets: Vec<usize> = mode.program().kernel().servers.values().map(|s| s.targets.len()).collect();
    assert_eq!(targets, [1, 1]);
    assert!(mode.verify().unwrap().is_empty() && !sample(&mut mode));
    // It is reported once.
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.refused.is_empty() && !report.full);
    // When the Service changes, it is tried again.
    mode.program().kernel().refused_targets.clear();
    cluster.apply_hosts("web", &["b", "c"]);
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && !report.full, "{report:?}");
    let targets: Vec<usize> = mode.program().kernel().servers.values().map(|s| s.targets.len()).collect();
    assert_eq!(targets.iter().sum::<usize>(), 4, "two of web, one of other, and one that drains");
}

#[test]
fn an_address_that_cannot_be_added_is_left_out_and_the_others_serve() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    let refused = cluster.all(Family::V4);
    let of_web = refused.iter().find(|(name, _)| name.name() == "web").and_then(|(_, plan)| plan.as_ref());
    let ip = of_web.and_then(|plan| plan.ports[0].frontends[0].address).unwrap();
    mode.program().kernel().refused_addresses.insert(ip);
    let report = mode.sync(&settings(), refused).unwrap();
    let services: Vec<String> = report.refused.iter().map(|r| r.service.to_string()).collect();
    assert_eq!(services, ["default/web"]);
    assert_eq!(mode.program().kernel().bound.len(), 1, "the address of the other Service");
    assert!(mode.verify().unwrap().is_empty() && !sample(&mut mode));
    // It is reported once, and tried again when the Service changes.
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.refused.is_empty() && !report.full);
    mode.program().kernel().refused_addresses.clear();
    cluster.apply_hosts("web", &["b", "c"]);
    mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_eq!(mode.program().kernel().bound.len(), 2);
    assert!(mode.verify().unwrap().is_empty());
}

#[test]
fn a_frontend_whose_virtual_server_is_refused_is_rejected() {
    let mut cluster = two();
    cluster.apply(service("odd", 3).protocol(Protocol::Sctp));
    cluster.apply_slice("odd", ("http", Protocol::Sctp, 8080), &Endpoint::all(&["a"]));
    let mut mode = mode(Family::V4);
    mode.program().kernel().unsupported_protocols.insert(132);
    let report = mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    assert_eq!(report.refused.len(), 1);
    assert!(report.refused[0].reason.contains("Protocol not supported"), "{}", report.refused[0].reason);
    assert_eq!(mode.program().kernel().servers.len(), 2);
    assert_eq!(mode.program().kernel().sets[Set::NoEndpoints.name(Family::V4)].members.len(), 1);
    assert_eq!(mode.program().kernel().resets, Vec::<String>::new());
    assert!(mode.verify().unwrap().is_empty());
}

#[test]
fn a_missing_scheduler_is_replaced_and_a_missing_configured_one_is_not_used() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    mode.program().kernel().missing_schedulers.insert("mh".to_owned());
    let plans = cluster.all(Family::V4).into_iter().map(|(name, plan)| {
        let asks = name.name() == "web";
        (name, plan.map(|plan| portway_model::ServicePlan { scheduler: asks.then(|| "mh".into()), ..plan }))
    });
    let report = mode.sync(&settings(), plans.collect()).unwrap();
    assert_eq!(report.degraded.len(), 1);
    assert!(report.degraded[0].reason.contains("modprobe ip_vs_mh"), "{}", report.degraded[0].reason);
    assert!(mode.program().kernel().servers.values().all(|s| s.server.scheduler == "rr"));
    // A configured one that is missing is not used either.
    let ipvs = IpvsSettings { scheduler: Scheduler::MaglevHashing, ..IpvsSettings::default() };
    let report = mode.sync(&Settings { ipvs, ..settings() }, Vec::new()).unwrap();
    let warnings = report.warnings.join("");
    assert!(warnings.contains("modprobe ip_vs_mh") && warnings.contains("rr stays"), "{warnings}");
    assert!(mode.program().kernel().servers.values().all(|s| s.server.scheduler == "rr"));
}

#[test]
fn changes_refused_because_of_drift_are_not_reported_for_a_service() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    // Another process deletes all virtual servers, and an endpoint changes before that is noticed.
    mode.program().kernel().servers.clear();
    cluster.apply_hosts("web", &["b", "c"]);
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && report.full, "{report:?}");
    assert_eq!(mode.program().kernel().servers.len(), 2);
    assert!(mode.program().kernel().sets[Set::NoEndpoints.name(Family::V4)].members.is_empty());
}

#[test]
fn a_node_port_and_an_external_ip_of_one_service_can_share_a_virtual_server() {
    let own = own_addresses(Family::V4)[0];
    let web = service("web", 1).port(30007).node_port(30007).external_ips(&[own]);
    let mut cluster = TestCluster::new().service(web).slice("web", &Endpoint::all(&["a"]));
    let mut mode = mode(Family::V4);
    let report = mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && report.degraded.is_empty(), "{report:?}");
    assert!(mode.verify().unwrap().is_empty() && !sample(&mut mode));
}

#[test]
fn of_two_services_that_need_one_virtual_server_the_first_keeps_it_until_deleted() {
    let own = own_addresses(Family::V4)[0];
    let first = service("first", 1).port(30007).external_ips(&[own]);
    let mut cluster = TestCluster::new().service(first).slice("first", &Endpoint::all(&["a"]));
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    cluster.apply(service("another", 2).node_port(30007));
    cluster.apply_hosts("another", &["c"]);
    let served_by = |mode: &mut crate::node::Mode| {
        let at =
            mode.program().kernel().servers.iter().find(|(key, _)| key.address == own && key.port == 30007);
        let serving = at.unwrap().1.targets.iter().filter(|(_, real)| real.weight > 0);
        serving.map(|(target, _)| target.ip).collect::<Vec<_>>()
    };
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_eq!(served_by(&mut mode), [address(Family::V4, "a")], "the first Service keeps it");
    let degraded: Vec<String> =
        report.degraded.iter().map(|d| format!("{}: {}", d.service, d.reason)).collect();
    assert_eq!(
        degraded,
        [format!("default/another: TCP {own}:30007 is served for Service default/first already")]
    );
    // It is reported once.
    mode.mark_stale();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.degraded.is_empty() && report.drift.is_empty(), "{report:?}");
    cluster.delete("first");
    mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_eq!(served_by(&mut mode), [address(Family::V4, "c")]);
    assert!(!sample(&mut mode) && mode.verify().unwrap().is_empty());
}

#[test]
fn a_removed_node_address_loses_its_virtual_servers_and_changes_nothing_else() {
    let web = service("web", 1).node_port(30001).external_local();
    let mut cluster = TestCluster::new().service(web).slice("web", &Endpoint::all(&["a", "c"]));
    let mut mode = mode(Family::V4);
    let extra: std::net::IpAddr = "192.168.50.99".parse().unwrap();
    mode.program().kernel().node_addresses.insert(extra);
    mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    let at_extra = |mode: &mut crate::node::Mode| {
        mode.program().kernel().servers.keys().filter(|k| k.address == extra).count()
    };
    let marks = |mode: &mut crate::node::Mode| mode.program().kernel().servers.keys().map(|k| k.fwmark).max();
    assert_eq!(at_extra(&mut mode), 1);
    let mark = marks(&mut mode);
    mode.program().kernel().node_addresses.remove(&extra);
    mode.program()
        .kernel()
        .events
        .push(Event::Address { added: false, address: Address::new(2, IpNet::from(extra)) });
    assert!(mode.program().addresses_changed());
    mode.mark_stale();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.drift.is_empty(), "no other process changed an object: {}", report.drift);
    assert_eq!(at_extra(&mut mode), 0);
    assert_eq!(marks(&mut mode), mark);
    assert!(mode.program().kernel().resets.is_empty());
}

/// The kernel sends a notification only once.
#[test]
fn a_change_is_applied_after_a_failed_listing_of_addresses() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    mode.program().kernel().fail_node_addresses = true;
    let added = Address::new(99, IpNet::from(address(Family::V4, "c")));
    mode.program().kernel().events.push(Event::Address { added: true, address: added });
    assert!(mode.program().addresses_changed());
    cluster.apply_hosts("other", &["b", "c"]);
    assert!(mode.sync(&settings(), cluster.changes(Family::V4)).is_err());
    mode.program().kernel().fail_node_addresses = false;
    mode.sync(&settings(), Vec::new()).unwrap();
    let targets: usize = mode.program().kernel().servers.values().map(|s| s.targets.len()).sum();
    assert_eq!(targets, 4, "two of each: no endpoint has connections to drain");
    assert!(mode.verify().unwrap().is_empty());
}
