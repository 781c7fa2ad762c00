//! Which Service port owns a destination, and when its route is removed.

use super::*;
use crate::redirect::EndpointScope;

fn now() -> Moment {
    Moment::of(std::time::Duration::from_secs(1))
}

/// Routes and the settings that plans are applied with.
#[derive(Default)]
struct Subject {
    routes: Routes,
    settings: UserspaceSettings,
}

impl Subject {
    fn change(&mut self, name: &ServiceName, plan: Option<&ServicePlan>) {
        self.routes.change(name, Family::V4, plan, &self.settings, now());
    }

    fn owner(&self, protocol: Protocol, original: &str) -> Option<String> {
        let original = original.parse().expect("an address");
        self.routes.find(protocol, original).map(|port| port.id.service.to_string())
    }

    fn tcp(&self, original: &str) -> Option<String> {
        self.owner(Protocol::Tcp, original)
    }
}

fn plan(name: &str, frontends: &[(Option<&str>, u16)]) -> (ServiceName, ServicePlan) {
    let mut plan = crate::redirect::tests::web();
    plan.name = ServiceName::new("default", name);
    plan.ports[0].frontends = frontends
        .iter()
        .map(|(address, port)| portway_model::Frontend {
            kind: portway_model::FrontendKind::ExternalIp,
            address: address.map(|a| a.parse().expect("an address")),
            port: *port,
        })
        .collect();
    (plan.name.clone(), plan)
}

#[test]
fn a_frontend_is_found_by_address_and_a_node_port_by_its_number() {
    let mut subject = Subject::default();
    let (name, web) = plan("web", &[(Some("10.96.0.1"), 80), (None, 30001)]);
    subject.change(&name, Some(&web));
    assert_eq!(subject.tcp("10.96.0.1:80").as_deref(), Some("default/web"));
    assert_eq!(subject.tcp("192.168.1.1:30001").as_deref(), Some("default/web"));
    assert_eq!(subject.tcp("10.96.0.1:81"), None);
    assert_eq!(subject.owner(Protocol::Udp, "10.96.0.1:80"), None);
    assert_eq!(subject.tcp("[fd96::1]:30001"), None);
}

#[test]
fn a_removed_route_is_found_until_the_rules_are_committed() {
    let mut subject = Subject::default();
    let (name, web) = plan("web", &[(Some("10.96.0.1"), 80), (Some("10.96.0.1"), 81)]);
    subject.change(&name, Some(&web));
    subject.routes.commit_routes(Family::V4);
    let (_, less) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.change(&name, Some(&less));
    assert!(subject.tcp("10.96.0.1:81").is_some());
    subject.routes.commit_routes(Family::V6);
    assert!(subject.tcp("10.96.0.1:81").is_some());
    subject.routes.commit_routes(Family::V4);
    assert_eq!((subject.tcp("10.96.0.1:81"), subject.tcp("10.96.0.1:80").is_some()), (None, true));
    subject.change(&name, None);
    assert!(subject.tcp("10.96.0.1:80").is_some());
    subject.routes.commit_routes(Family::V4);
    assert_eq!(subject.tcp("10.96.0.1:80"), None);
    assert_eq!(subject.routes.ports().count(), 0);
}

#[test]
fn a_route_that_is_added_again_before_the_commit_stays() {
    let mut subject = Subject::default();
    let (name, web) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.change(&name, Some(&web));
    subject.change(&name, None);
    subject.change(&name, Some(&web));
    subject.routes.commit_routes(Family::V4);
    assert!(subject.tcp("10.96.0.1:80").is_some());
}

#[test]
fn an_address_can_move_to_another_service_in_either_order() {
    let mut subject = Subject::default();
    let (one, old) = plan("one", &[(Some("10.96.0.1"), 80)]);
    let (two, new) = plan("two", &[(Some("10.96.0.1"), 80)]);
    subject.change(&one, Some(&old));
    // Added first, then removed.
    subject.change(&two, Some(&new));
    subject.change(&one, None);
    subject.routes.commit_routes(Family::V4);
    assert_eq!(subject.tcp("10.96.0.1:80").as_deref(), Some("default/two"));
    subject.change(&two, None);
    subject.change(&one, Some(&old));
    subject.routes.commit_routes(Family::V4);
    assert_eq!(subject.tcp("10.96.0.1:80").as_deref(), Some("default/one"));
}

#[test]
fn services_except_lists_the_other_services_of_the_family() {
    let mut subject = Subject::default();
    for name in ["one", "two"] {
        let (name, plan) = plan(name, &[(Some("10.96.0.1"), 80)]);
        subject.change(&name, Some(&plan));
    }
    let two = std::collections::HashSet::from([ServiceName::new("default", "two")]);
    assert_eq!(subject.routes.services_except(Family::V4, &two), [ServiceName::new("default", "one")]);
    assert!(subject.routes.services_except(Family::V6, &two).is_empty());
}

#[test]
fn connections_survive_a_renamed_port() {
    let mut subject = Subject::default();
    let (name, mut web) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.change(&name, Some(&web));
    let original = "10.96.0.1:80".parse().expect("an address");
    let port = subject.routes.find(Protocol::Tcp, original).cloned().expect("a route");
    let client = std::net::IpAddr::from([192, 0, 2, 1]);
    let lease =
        port.choose(EndpointScope::Cluster, client, &[], now(), Default::default()).expect("an endpoint");
    web.ports[0].name = "renamed".into();
    subject.change(&name, Some(&web));
    assert_eq!((lease.drains_until(), lease.open()), (None, 1));
    subject.change(&name, None);
    assert!(lease.drains_until().is_some());
}

#[test]
fn a_port_keeps_its_counters_when_its_endpoints_change() {
    let mut subject = Subject::default();
    let (name, mut web) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.change(&name, Some(&web));
    let find = |subject: &Subject| {
        let original = "10.96.0.1:80".parse().expect("an address");
        subject.routes.find(Protocol::Tcp, original).cloned().expect("a route")
    };
    let before = find(&subject);
    assert!(!before.is_empty(EndpointScope::Cluster));
    web.ports[0].cluster = [].into();
    subject.change(&name, Some(&web));
    assert!(Arc::ptr_eq(&before, &find(&subject)) && before.is_empty(EndpointScope::Cluster));
}
