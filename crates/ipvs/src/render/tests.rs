//! The kernel objects of Services.

use super::*;
use crate::marks::Marks;
use portway_testkit::cluster::{TestCluster, own_addresses, service, settings};
use portway_testkit::objects::{Endpoint, Service};

fn plan(service: Service) -> ServicePlan {
    let mut cluster = TestCluster::new().service(service).slice("web", &Endpoint::all(&["a", "c"]));
    cluster.all(Family::V4).into_iter().find_map(|(_, plan)| plan).expect("a plan")
}

/// The Service `web`, with a cluster IP.
fn web() -> Service {
    service("web", 1)
}

/// Renders a Service, with the marks it needs.
fn render(
    settings: &Settings,
    plan: &ServicePlan,
    missing: &[Scheduler],
) -> (ServiceObjects, Option<String>) {
    let own: BTreeSet<IpAddr> = own_addresses(Family::V4).into();
    let missing: HashSet<Scheduler> = missing.iter().copied().collect();
    let (none, refused) = (Marks::default(), RefusedObjects::new());
    let context = |marks| RenderContext {
        family: Family::V4,
        settings,
        node_addresses: &own,
        marks,
        missing_schedulers: &missing,
        refused_objects: &refused,
    };
    let mut marks = Marks::default();
    marks.assign(&plan.name, &context(&none).mark_requests(plan), settings.masquerade_mark, |_| false);
    (context(&marks).service_objects(plan), context(&marks).degraded(plan))
}

fn sets_with(objects: &ServiceObjects, port: u16) -> Vec<Set> {
    let mut sets: Vec<Set> =
        objects.members.iter().filter(|(_, m)| m.port == Some(port)).map(|(s, _)| *s).collect();
    sets.dedup();
    sets
}

#[test]
fn a_cluster_ip_has_one_virtual_server_one_address_and_its_set() {
    let (objects, degraded) = render(&settings(), &plan(web()), &[]);
    assert_eq!(degraded, None);
    assert_eq!(objects.addresses.len(), 1);
    let [(Key::Address { port: 80, .. }, server)] = &objects.servers[..] else {
        panic!("{:?}", objects.servers)
    };
    assert_eq!(server.targets.values().collect::<Vec<_>>(), [&SERVING_WEIGHT; 2]);
    assert_eq!(sets_with(&objects, 80), [Set::ClusterIp]);
    // Only the endpoint on this node needs masquerading for connections to itself.
    assert_eq!(objects.members.iter().filter(|(set, _)| *set == Set::LoopBack).count(), 1);
}

#[test]
fn policy_local_has_a_second_virtual_server_with_all_endpoints_by_mark() {
    let (objects, _) = render(&settings(), &plan(web().node_port(30001).external_local()), &[]);
    let marked: Vec<&Server> =
        objects.servers.iter().filter(|(key, _)| matches!(key, Key::Mark(_))).map(|(_, s)| s).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(marked[0].targets.len(), 2, "all endpoints");
    let at_node = |key: &Key| matches!(key, Key::Address { port: 30001, .. });
    assert!(
        objects.servers.iter().filter(|(key, _)| at_node(key)).all(|(_, s)| s.targets.len() == 1),
        "local endpoints"
    );
    let short_cuts: Vec<_> = objects.members.iter().filter(|(set, _)| *set == Set::ShortCut).collect();
    assert!(!short_cuts.is_empty() && short_cuts.iter().all(|(_, m)| m.mark.is_some_and(|(m, _)| m > 0)));
}

#[test]
fn an_external_ip_of_the_node_is_not_added_to_the_device() {
    let own = own_addresses(Family::V4)[0];
    let (objects, _) = render(&settings(), &plan(web().external_ips(&[own])), &[]);
    assert!(objects.servers.iter().any(|(key, _)| key.ip() == Some(own)), "it has a virtual server");
    assert!(!objects.addresses.contains(&own), "it is not on kube-ipvs0");
    assert!(
        !objects.members.iter().any(|(set, m)| *set == Set::IpvsIps && m.ip == Some(own)),
        "its other ports are not rejected"
    );
}

#[test]
fn a_service_at_an_excluded_address_is_programmed() {
    let exclude = vec!["10.96.0.0/16".parse().unwrap()];
    let excluding =
        Settings { ipvs: portway_dataplane::IpvsSettings { exclude, ..Default::default() }, ..settings() };
    let (objects, degraded) = render(&excluding, &plan(web()), &[]);
    assert_eq!(degraded, None);
    assert_eq!(objects.servers.len(), render(&settings(), &plan(web()), &[]).0.servers.len());
}

#[test]
fn the_scheduler_of_the_annotation_is_used_if_the_kernel_has_it() {
    let asks = |text: &str| ServicePlan { scheduler: Some(text.into()), ..plan(web()) };
    let scheduler = |plan: &ServicePlan, missing: &[Scheduler]| {
        let (objects, degraded) = render(&settings(), plan, missing);
        (objects.servers[0].1.scheduler.as_str(), degraded)
    };
    for (_, name) in Scheduler::ALL {
        assert_eq!(scheduler(&asks(name), &[]), (name, None));
    }
    let (used, degraded) = scheduler(&asks("fastest"), &[]);
    assert_eq!(used, "rr");
    assert!(degraded.is_some_and(|w| w.contains("portway.dev/ipvs-scheduler") && w.contains("\"fastest\"")));
    let (used, degraded) = scheduler(&asks("mh"), &[Scheduler::MaglevHashing]);
    assert_eq!(used, "rr");
    assert!(degraded.is_some_and(|w| w.contains("modprobe ip_vs_mh")));
}

#[test]
fn affinity_of_a_virtual_server_by_mark_is_source_hashing() {
    let plan = plan(web().node_port(30001).external_local().affinity(10_800));
    assert_eq!(plan.name, ServiceName::new("default", "web"));
    let (objects, _) = render(&settings(), &plan, &[]);
    for (key, server) in &objects.servers {
        match key {
            Key::Mark(_) => {
                assert_eq!((server.affinity, server.scheduler), (None, Scheduler::SourceHashing));
            }
            Key::Address { .. } => assert_eq!(server.affinity, Some(10_800)),
        }
    }
}
