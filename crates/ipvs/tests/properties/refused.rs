//! Objects that the kernel refuses are left out and reported; the rest is programmed.

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
fn an_endpoint_that_is_refused_is_left_out_and_the_others_serve() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    let b = address(Family::V4, "b");
    mode.program().kernel().no_targets.insert(b);
    let report = mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    let refused: Vec<String> = report.refused.iter().map(|r| r.service.to_string()).collect();
    assert_eq!(refused, ["default/web"]);
    let behind: Vec<usize> = mode.program().kernel().servers.values().map(|s| s.targets.len()).collect();
    assert_eq!(behind, [1, 1]);
    assert!(mode.verify().unwrap().is_empty() && !sample(&mut mode));
    // It is reported once.
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.refused.is_empty() && !report.full);
    // When the Service changes, it is tried again.
    mode.program().kernel().no_targets.clear();
    cluster.apply_hosts("web", &["b", "c"]);
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && !report.full, "{report:?}");
    let behind: Vec<usize> = mode.program().kernel().servers.values().map(|s| s.targets.len()).collect();
    assert_eq!(behind.iter().sum::<usize>(), 4, "two, one, and one that drains");
}

#[test]
fn a_server_that_is_refused_is_refused_to_clients_too() {
    let mut cluster = two();
    cluster.apply(service("odd", 3).protocol(Protocol::Sctp));
    cluster.apply_slice("odd", ("http", Protocol::Sctp, 8080), &Endpoint::all(&["a"]));
    let mut mode = mode(Family::V4);
    mode.program().kernel().no_protocols.insert(132);
    let report = mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    assert_eq!(report.refused.len(), 1);
    assert!(report.refused[0].reason.contains("Protocol not supported"), "{}", report.refused[0].reason);
    assert_eq!(mode.program().kernel().servers.len(), 2);
    assert_eq!(mode.program().kernel().sets[Set::NoEndpoints.name(Family::V4)].members.len(), 1);
    assert_eq!(mode.program().kernel().resets, Vec::<String>::new());
    assert!(mode.verify().unwrap().is_empty());
}

#[test]
fn a_scheduler_that_is_missing_is_replaced_and_the_configured_one_is_needed() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    mode.program().kernel().no_schedulers.insert("mh".to_owned());
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
    let words = report.warnings.join("");
    assert!(words.contains("modprobe ip_vs_mh") && words.contains("rr stays"), "{words}");
    assert!(mode.program().kernel().servers.values().all(|s| s.server.scheduler == "rr"));
}

#[test]
fn what_the_kernel_holds_otherwise_than_we_thought_is_nobodys_fault() {
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
fn a_node_port_and_an_external_ip_may_be_one_server() {
    let own = own_addresses(Family::V4)[0];
    let web = service("web", 1).port(30007).node_port(30007).external_ips(&[own]);
    let mut cluster = TestCluster::new().service(web).slice("web", &Endpoint::all(&["a"]));
    let mut mode = mode(Family::V4);
    let report = mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    assert!(report.refused.is_empty() && report.degraded.is_empty(), "{report:?}");
    assert!(mode.verify().unwrap().is_empty() && !sample(&mut mode));
}

#[test]
fn of_two_services_that_want_one_server_one_waits_until_the_other_goes() {
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
        let takes = at.unwrap().1.targets.iter().filter(|(_, behind)| behind.share > 0);
        takes.map(|(target, _)| target.ip).collect::<Vec<_>>()
    };
    let report = mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_eq!(served_by(&mut mode), [address(Family::V4, "a")], "who had it keeps it");
    let said: Vec<String> = report.degraded.iter().map(|o| format!("{}: {}", o.service, o.reason)).collect();
    assert_eq!(
        said,
        [format!("default/another: TCP {own}:30007 is served for Service default/first already")]
    );
    // That is said once.
    mode.mark_stale();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.degraded.is_empty() && report.drift.is_empty(), "{report:?}");
    cluster.delete("first");
    mode.sync(&settings(), cluster.changes(Family::V4)).unwrap();
    assert_eq!(served_by(&mut mode), [address(Family::V4, "c")]);
    assert!(!sample(&mut mode) && mode.verify().unwrap().is_empty());
}

#[test]
fn an_address_that_the_node_loses_takes_its_servers_along_and_disturbs_nothing_else() {
    let web = service("web", 1).node_port(30001).external_local();
    let mut cluster = TestCluster::new().service(web).slice("web", &Endpoint::all(&["a", "c"]));
    let mut mode = mode(Family::V4);
    let extra: std::net::IpAddr = "192.168.50.99".parse().unwrap();
    mode.program().kernel().own.insert(extra);
    mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    let at_extra = |mode: &mut crate::node::Mode| {
        mode.program().kernel().servers.keys().filter(|k| k.address == extra).count()
    };
    let marks = |mode: &mut crate::node::Mode| mode.program().kernel().servers.keys().map(|k| k.fwmark).max();
    assert_eq!(at_extra(&mut mode), 1);
    let mark = marks(&mut mode);
    mode.program().kernel().own.remove(&extra);
    mode.program()
        .kernel()
        .events
        .push(Event::Address { added: false, address: Address::new(2, IpNet::from(extra)) });
    assert!(mode.program().addresses_changed());
    mode.mark_stale();
    let report = mode.sync(&settings(), Vec::new()).unwrap();
    assert!(report.drift.is_empty(), "nobody changed what is ours: {}", report.drift);
    assert_eq!(at_extra(&mut mode), 0);
    assert_eq!(marks(&mut mode), mark);
    assert!(mode.program().kernel().resets.is_empty());
}

/// The kernel announces a change only once.
#[test]
fn a_change_is_made_though_addresses_could_not_be_listed_when_it_came() {
    let mut cluster = two();
    let mut mode = mode(Family::V4);
    mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    mode.program().kernel().own_is_secret = true;
    let came = Address::new(99, IpNet::from(address(Family::V4, "c")));
    mode.program().kernel().events.push(Event::Address { added: true, address: came });
    assert!(mode.program().addresses_changed());
    cluster.apply_hosts("other", &["b", "c"]);
    assert!(mode.sync(&settings(), cluster.changes(Family::V4)).is_err());
    mode.program().kernel().own_is_secret = false;
    mode.sync(&settings(), Vec::new()).unwrap();
    let behind: usize = mode.program().kernel().servers.values().map(|s| s.targets.len()).sum();
    assert_eq!(behind, 4, "two of each: nobody has connections to drain");
    assert!(mode.verify().unwrap().is_empty());
}
