//! What Services come to.

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

/// Renders a Service, with the marks it wants.
fn part(settings: &Settings, plan: &ServicePlan, missing: &[Scheduler]) -> (ServiceObjects, Option<String>) {
    let own: BTreeSet<IpAddr> = own_addresses(Family::V4).into();
    let missing: HashSet<Scheduler> = missing.iter().copied().collect();
    let (none, refused) = (Marks::default(), RefusedParts::new());
    let world = |marks| RenderContext {
        family: Family::V4,
        settings,
        own: &own,
        marks,
        missing: &missing,
        refused: &refused,
    };
    let mut marks = Marks::default();
    marks.assign(&plan.name, &world(&none).wants(plan), settings.masquerade_mark, |_| false);
    (world(&marks).service_objects(plan), world(&marks).degraded(plan))
}

fn sets_with(part: &ServiceObjects, port: u16) -> Vec<Set> {
    let mut sets: Vec<Set> =
        part.members.iter().filter(|(_, m)| m.port == Some(port)).map(|(s, _)| *s).collect();
    sets.dedup();
    sets
}

#[test]
fn a_cluster_ip_is_one_server_one_address_and_its_sets() {
    let (part, degraded) = part(&settings(), &plan(web()), &[]);
    assert_eq!(degraded, None);
    assert_eq!(part.addresses.len(), 1);
    let [(Key::At { port: 80, .. }, server)] = &part.servers[..] else { panic!("{:?}", part.servers) };
    assert_eq!(server.targets.values().collect::<Vec<_>>(), [&SHARE; 2]);
    assert_eq!(sets_with(&part, 80), [Set::ClusterIp]);
    // Only the endpoint that is here can reach itself through here.
    assert_eq!(part.members.iter().filter(|(set, _)| *set == Set::LoopBack).count(), 1);
}

#[test]
fn policy_local_is_two_servers_and_a_mark_between_them() {
    let (part, _) = part(&settings(), &plan(web().node_port(30001).external_local()), &[]);
    let marked: Vec<&Server> =
        part.servers.iter().filter(|(key, _)| matches!(key, Key::Mark(_))).map(|(_, s)| s).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(marked[0].targets.len(), 2, "all endpoints");
    let at_node = |key: &Key| matches!(key, Key::At { port: 30001, .. });
    assert!(
        part.servers.iter().filter(|(key, _)| at_node(key)).all(|(_, s)| s.targets.len() == 1),
        "those here"
    );
    let short_cuts: Vec<_> = part.members.iter().filter(|(set, _)| *set == Set::ShortCut).collect();
    assert!(!short_cuts.is_empty() && short_cuts.iter().all(|(_, m)| m.mark.is_some_and(|(m, _)| m > 0)));
}

#[test]
fn an_address_that_the_node_has_anyway_stays_where_it_is() {
    let own = own_addresses(Family::V4)[0];
    let (part, _) = part(&settings(), &plan(web().external_ips(&[own])), &[]);
    assert!(part.servers.iter().any(|(key, _)| key.ip() == Some(own)), "it is served");
    assert!(!part.addresses.contains(&own), "but not on our device");
    assert!(
        !part.members.iter().any(|(set, m)| *set == Set::IpvsIps && m.ip == Some(own)),
        "nor are its ports ours"
    );
}

#[test]
fn others_servers_are_left_alone_and_that_is_said() {
    let exclude = vec!["10.96.0.0/16".parse().unwrap()];
    let settings =
        Settings { ipvs: portway_dataplane::IpvsSettings { exclude, ..Default::default() }, ..settings() };
    let (part, degraded) = part(&settings, &plan(web()), &[]);
    assert_eq!((part.servers.len(), part.addresses.len()), (0, 0));
    assert!(degraded.is_some_and(|words| words.contains("10.96.0.1") && words.contains("excludeCIDRs")));
}

#[test]
fn a_scheduler_is_the_services_own_if_it_asks_and_the_kernel_has_it() {
    let asks = |text: &str| ServicePlan { scheduler: Some(text.into()), ..plan(web()) };
    let scheduler = |plan: &ServicePlan, missing: &[Scheduler]| {
        let (part, degraded) = part(&settings(), plan, missing);
        (part.servers[0].1.scheduler.as_str(), degraded)
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
fn a_client_that_sticks_does_so_by_its_address_where_a_mark_leads() {
    let plan = plan(web().node_port(30001).external_local().affinity(10_800));
    assert_eq!(plan.name, ServiceName::new("default", "web"));
    let (part, _) = part(&settings(), &plan, &[]);
    for (key, server) in &part.servers {
        match key {
            Key::Mark(_) => {
                assert_eq!((server.affinity, server.scheduler), (None, Scheduler::SourceHashing));
            }
            Key::At { .. } => assert_eq!(server.affinity, Some(10_800)),
        }
    }
}
