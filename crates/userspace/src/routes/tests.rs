//! Who is found where, and until when.

use super::*;
use crate::redirect::Reach;

fn at() -> Moment {
    Moment::of(std::time::Duration::from_secs(1))
}

/// Routes that are told of changes as the mode does it.
#[derive(Default)]
struct Subject {
    routes: Routes,
    settings: UserspaceSettings,
}

impl Subject {
    fn tell(&mut self, name: &ServiceName, plan: Option<&ServicePlan>) {
        self.routes.change(name, Family::V4, plan, &self.settings, at());
    }

    fn owner(&self, protocol: Protocol, wanted: &str) -> Option<String> {
        let wanted = wanted.parse().expect("an address");
        self.routes.find(protocol, wanted).map(|port| port.id.service.to_string())
    }

    fn tcp(&self, wanted: &str) -> Option<String> {
        self.owner(Protocol::Tcp, wanted)
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
    subject.tell(&name, Some(&web));
    assert_eq!(subject.tcp("10.96.0.1:80").as_deref(), Some("default/web"));
    assert_eq!(subject.tcp("192.168.1.1:30001").as_deref(), Some("default/web"));
    assert_eq!(subject.tcp("10.96.0.1:81"), None);
    assert_eq!(subject.owner(Protocol::Udp, "10.96.0.1:80"), None);
    assert_eq!(subject.tcp("[fd96::1]:30001"), None);
}

#[test]
fn what_goes_is_found_until_the_rules_are_in_place() {
    let mut subject = Subject::default();
    let (name, web) = plan("web", &[(Some("10.96.0.1"), 80), (Some("10.96.0.1"), 81)]);
    subject.tell(&name, Some(&web));
    subject.routes.settle(Family::V4);
    let (_, less) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.tell(&name, Some(&less));
    assert!(subject.tcp("10.96.0.1:81").is_some());
    subject.routes.settle(Family::V6);
    assert!(subject.tcp("10.96.0.1:81").is_some());
    subject.routes.settle(Family::V4);
    assert_eq!((subject.tcp("10.96.0.1:81"), subject.tcp("10.96.0.1:80").is_some()), (None, true));
    subject.tell(&name, None);
    assert!(subject.tcp("10.96.0.1:80").is_some());
    subject.routes.settle(Family::V4);
    assert_eq!(subject.tcp("10.96.0.1:80"), None);
    assert_eq!(subject.routes.ports().count(), 0);
}

#[test]
fn what_comes_back_before_then_stays() {
    let mut subject = Subject::default();
    let (name, web) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.tell(&name, Some(&web));
    subject.tell(&name, None);
    subject.tell(&name, Some(&web));
    subject.routes.settle(Family::V4);
    assert!(subject.tcp("10.96.0.1:80").is_some());
}

#[test]
fn an_address_that_goes_over_to_another_service_is_the_others() {
    let mut subject = Subject::default();
    let (one, old) = plan("one", &[(Some("10.96.0.1"), 80)]);
    let (two, new) = plan("two", &[(Some("10.96.0.1"), 80)]);
    subject.tell(&one, Some(&old));
    // In either order.
    subject.tell(&two, Some(&new));
    subject.tell(&one, None);
    subject.routes.settle(Family::V4);
    assert_eq!(subject.tcp("10.96.0.1:80").as_deref(), Some("default/two"));
    subject.tell(&two, None);
    subject.tell(&one, Some(&old));
    subject.routes.settle(Family::V4);
    assert_eq!(subject.tcp("10.96.0.1:80").as_deref(), Some("default/one"));
}

#[test]
fn who_is_not_named_is_another() {
    let mut subject = Subject::default();
    for name in ["one", "two"] {
        let (name, plan) = plan(name, &[(Some("10.96.0.1"), 80)]);
        subject.tell(&name, Some(&plan));
    }
    let two = std::collections::HashSet::from([ServiceName::new("default", "two")]);
    assert_eq!(subject.routes.others(Family::V4, &two), [ServiceName::new("default", "one")]);
    assert!(subject.routes.others(Family::V6, &two).is_empty());
}

#[test]
fn connections_outlive_the_name_of_their_port() {
    let mut subject = Subject::default();
    let (name, mut web) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.tell(&name, Some(&web));
    let wanted = "10.96.0.1:80".parse().expect("an address");
    let port = subject.routes.find(Protocol::Tcp, wanted).cloned().expect("it is there");
    let client = std::net::IpAddr::from([192, 0, 2, 1]);
    let lease = port.choose(Reach::Cluster, client, &[], at(), Default::default()).expect("somebody");
    web.ports[0].name = "renamed".into();
    subject.tell(&name, Some(&web));
    assert_eq!((lease.leaves(), lease.open()), (None, 1));
    subject.tell(&name, None);
    assert!(lease.leaves().is_some());
}

#[test]
fn a_port_goes_on_counting_when_its_endpoints_change() {
    let mut subject = Subject::default();
    let (name, mut web) = plan("web", &[(Some("10.96.0.1"), 80)]);
    subject.tell(&name, Some(&web));
    let find = |subject: &Subject| {
        let wanted = "10.96.0.1:80".parse().expect("an address");
        subject.routes.find(Protocol::Tcp, wanted).cloned().expect("it is there")
    };
    let before = find(&subject);
    assert!(!before.is_empty(Reach::Cluster));
    web.ports[0].cluster = [].into();
    subject.tell(&name, Some(&web));
    assert!(Arc::ptr_eq(&before, &find(&subject)) && before.is_empty(Reach::Cluster));
}
