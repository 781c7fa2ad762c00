//! Round robin, least connections, ejection, affinity and draining. The time is a parameter, so no test waits.

use super::*;
use proptest::prelude::*;

fn target(n: u8) -> Target {
    Target { ip: IpAddr::from([10, 244, 1, n]), port: 8080 }
}

fn client(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

fn at(seconds: u64) -> Moment {
    Moment::of(Duration::from_secs(seconds))
}

/// A port and its settings.
struct Subject {
    port: Port,
    settings: UserspaceSettings,
    affinity: Option<u32>,
}

impl Subject {
    fn new(balancing: Balancing) -> Subject {
        let id = PortId {
            service: ServiceName::new("default", "web"),
            port: "".into(),
            protocol: Protocol::Tcp,
            family: Family::V4,
        };
        let settings =
            UserspaceSettings { balancing, drain_timeout: Duration::from_secs(60), ..Default::default() };
        Subject { port: Port::new(id), settings, affinity: None }
    }

    fn set_endpoints(&self, cluster: &[u8], local: &[u8], also: &[u8], now: Moment) -> bool {
        let list = |numbers: &[u8]| numbers.iter().map(|n| target(*n)).collect();
        let plan = PortPlan {
            name: "".into(),
            protocol: Protocol::Tcp,
            frontends: [].into(),
            cluster: list(cluster),
            local: list(local),
            also_serving: list(also),
            here: [].into(),
            internal: Default::default(),
            external: Default::default(),
            affinity: self.affinity,
            source_ranges: [].into(),
            admits_node: false,
        };
        let service = ServicePlan {
            name: self.port.id.service.clone(),
            family: Family::V4,
            ports: [].into(),
            health_check: None,
            scheduler: None,
            proxy_protocol: None,
        };
        self.port.update(&service, &plan, &self.settings, now)
    }

    fn choose(&self, from: u8, tried: &[u8], now: Moment) -> Option<u8> {
        self.lease(EndpointScope::Cluster, from, tried, now).map(|e| last(&e))
    }

    fn lease(&self, scope: EndpointScope, from: u8, tried: &[u8], now: Moment) -> Option<Lease> {
        let tried: Vec<Target> = tried.iter().map(|n| target(*n)).collect();
        self.port.choose(scope, client(from), &tried, now, self.settings.balancing)
    }
}

fn last(endpoint: &Endpoint) -> u8 {
    match endpoint.target.ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(_) => 0,
    }
}

#[test]
fn a_scope_without_endpoints_gives_none() {
    let subject = Subject::new(Balancing::RoundRobin);
    assert_eq!(subject.choose(1, &[], at(0)), None);
    subject.set_endpoints(&[1], &[], &[], at(0));
    assert_eq!(subject.choose(1, &[], at(0)), Some(1));
    assert!(subject.lease(EndpointScope::Local, 1, &[], at(0)).is_none());
    assert_eq!(subject.choose(1, &[1], at(0)), None);
}

#[test]
fn each_scope_has_its_own_endpoints_and_round_robin_position() {
    let subject = Subject::new(Balancing::RoundRobin);
    subject.set_endpoints(&[1, 2, 3], &[3], &[], at(0));
    let local = |_| subject.lease(EndpointScope::Local, 1, &[], at(0)).map(|e| last(&e));
    let all = |_| subject.choose(1, &[], at(0));
    assert_eq!([(); 3].map(local), [Some(3); 3]);
    assert_eq!([(); 4].map(all), [Some(1), Some(2), Some(3), Some(1)]);
}

#[test]
fn an_endpoint_that_keeps_failing_is_ejected_and_tried_again_later() {
    let subject = Subject::new(Balancing::RoundRobin);
    subject.set_endpoints(&[1, 2], &[], &[], at(0));
    let Some(failing) = subject.lease(EndpointScope::Cluster, 1, &[2], at(0)) else { panic!("no endpoint") };
    for _ in 0..EJECT_AFTER {
        assert!(!failing.is_ejected(at(0)));
        failing.failed(at(0));
    }
    assert!(failing.is_ejected(at(0)));
    assert!((0..6).all(|_| subject.choose(1, &[], at(0)) == Some(2)));
    // An ejected endpoint is chosen if there is no other.
    assert_eq!(subject.choose(1, &[2], at(0)), Some(1));
    // One more failure after the ejection causes a longer one.
    let later = at(0).after(FIRST_EJECTION);
    assert!(!failing.is_ejected(later));
    failing.failed(later);
    assert!(failing.is_ejected(later.after(FIRST_EJECTION)));
    // Failures during an ejection do not prolong it.
    for _ in 0..40 {
        failing.failed(later);
    }
    assert!(!failing.is_ejected(later.after(2 * FIRST_EJECTION)));
    let mut now = later;
    for _ in 0..40 {
        now = now.after(MAX_EJECTION);
        failing.failed(now);
    }
    assert!(failing.is_ejected(now) && !failing.is_ejected(now.after(MAX_EJECTION)));
    failing.succeeded();
    assert!(!failing.is_ejected(later));
    assert_eq!((0..4).filter(|_| subject.choose(1, &[], later) == Some(1)).count(), 2);
}

#[test]
fn the_endpoint_with_the_fewest_connections_is_chosen_and_equals_take_turns() {
    let subject = Subject::new(Balancing::LeastConnections);
    subject.set_endpoints(&[1, 2, 3], &[], &[], at(0));
    let mut held: Vec<Lease> = Vec::new();
    for _ in 0..9 {
        held.extend(subject.lease(EndpointScope::Cluster, 1, &[], at(0)));
    }
    let count = |held: &[Lease], n| held.iter().filter(|l| last(l) == n).count();
    assert_eq!([1, 2, 3].map(|n| count(&held, n)), [3, 3, 3]);
    held.retain(|lease| last(lease) != 2);
    for _ in 0..3 {
        held.extend(subject.lease(EndpointScope::Cluster, 1, &[], at(0)));
    }
    assert_eq!([1, 2, 3].map(|n| count(&held, n)), [3, 3, 3]);
}

#[test]
fn affinity_holds_until_its_timeout() {
    let subject = Subject { affinity: Some(10), ..Subject::new(Balancing::RoundRobin) };
    subject.set_endpoints(&[1, 2, 3], &[], &[], at(0));
    let first = subject.choose(7, &[], at(0));
    assert!((1..=9).all(|second| subject.choose(7, &[], at(second)) == first));
    // Each connection renews it; another client has its own endpoint.
    assert_eq!(subject.choose(7, &[], at(18)), first);
    assert_ne!(subject.choose(8, &[], at(18)), first);
    assert_ne!(subject.choose(7, &[], at(29)), first);
}

#[test]
fn a_client_whose_endpoint_fails_or_is_removed_gets_affinity_to_another() {
    let subject = Subject { affinity: Some(1000), ..Subject::new(Balancing::RoundRobin) };
    subject.set_endpoints(&[1, 2], &[], &[], at(0));
    assert_eq!(subject.choose(7, &[], at(0)), Some(1));
    assert_eq!(subject.choose(7, &[1], at(0)), Some(2));
    assert_eq!(subject.choose(7, &[], at(0)), Some(2));
    subject.set_endpoints(&[1, 3], &[], &[], at(0));
    let now = subject.choose(7, &[], at(0));
    assert!(now == Some(1) || now == Some(3));
    assert!((0..4).all(|_| subject.choose(7, &[], at(0)) == now));
}

#[test]
fn the_number_of_clients_with_affinity_is_bounded() {
    let subject = Subject { affinity: Some(1000), ..Subject::new(Balancing::RoundRobin) };
    subject.set_endpoints(&[1, 2], &[], &[], at(0));
    for n in 0..MAX_CLIENTS as u32 + 10_000 {
        let from = IpAddr::from(n.to_be_bytes());
        assert!(
            subject
                .port
                .choose(EndpointScope::Cluster, from, &[], at(n.into()), Balancing::RoundRobin)
                .is_some()
        );
    }
    assert!(subject.port.state().clients.len() <= MAX_CLIENTS);
}

#[test]
fn connections_of_a_removed_endpoint_drain_until_it_is_added_again() {
    let subject = Subject::new(Balancing::RoundRobin);
    subject.set_endpoints(&[1, 2], &[], &[], at(0));
    let Some(lease) = subject.lease(EndpointScope::Cluster, 1, &[2], at(0)) else { panic!("no endpoint") };
    assert!(subject.set_endpoints(&[2], &[], &[], at(10)), "it has a connection");
    assert_eq!(lease.drains_until(), Some(at(70)));
    assert_eq!(subject.choose(1, &[], at(10)), Some(2));
    // Another change does not restart the drain time.
    assert!(subject.set_endpoints(&[2, 3], &[], &[], at(40)));
    assert_eq!(lease.drains_until(), Some(at(70)));
    assert!(!subject.set_endpoints(&[1, 2], &[], &[], at(50)));
    assert_eq!((lease.drains_until(), lease.open()), (None, 1));
    // It is the same endpoint, with the connections that it had.
    let Some(again) = subject.lease(EndpointScope::Cluster, 1, &[2], at(50)) else { panic!("no endpoint") };
    assert_eq!(again.open(), 2);
    drop(again);
    // A terminating endpoint is not chosen, and does not drain.
    assert!(!subject.set_endpoints(&[2], &[], &[1], at(60)));
    assert_eq!((lease.drains_until(), subject.choose(1, &[2], at(60))), (None, None));
    assert!(subject.port.retire(Duration::from_secs(5), at(60)));
    assert_eq!(lease.drains_until(), Some(at(65)));
}

proptest! {
    /// Over any number of connections, no endpoint gets two more than another.
    #[test]
    fn round_robin_spreads_connections_evenly(endpoints in proptest::collection::btree_set(1u8..200, 1..20), connections in 1usize..200) {
        let subject = Subject::new(Balancing::RoundRobin);
        let list: Vec<u8> = endpoints.into_iter().collect();
        subject.set_endpoints(&list, &[], &[], at(0));
        let mut counts: HashMap<u8, usize> = list.iter().map(|n| (*n, 0)).collect();
        for _ in 0..connections {
            let chosen = subject.choose(1, &[], at(0)).expect("an endpoint");
            *counts.get_mut(&chosen).expect("an endpoint of the list") += 1;
        }
        let (least, most) = (counts.values().min(), counts.values().max());
        prop_assert!(most <= least.map(|n| n + 1).as_ref());
    }

    /// Each endpoint is chosen exactly once for one connection, and ejected endpoints last.
    #[test]
    fn each_endpoint_is_tried_once(
        endpoints in proptest::collection::btree_set(1u8..200, 1..12),
        ejected in proptest::collection::vec(any::<bool>(), 12),
        fewest in any::<bool>(),
    ) {
        let subject =
            Subject::new(if fewest { Balancing::LeastConnections } else { Balancing::RoundRobin });
        let list: Vec<u8> = endpoints.into_iter().collect();
        subject.set_endpoints(&list, &[], &[], at(0));
        let healthy = list.iter().zip(&ejected).filter(|(_, ejected)| !**ejected).count();
        let all: Vec<Arc<Endpoint>> = subject.port.state().endpoints().cloned().collect();
        for endpoint in all.iter().zip(&ejected).filter_map(|(e, ejected)| ejected.then_some(e)) {
            (0..EJECT_AFTER).for_each(|_| endpoint.failed(at(0)));
        }
        let mut tried = Vec::new();
        while let Some(chosen) = subject.choose(1, &tried, at(0)) {
            prop_assert!(!tried.contains(&chosen));
            let endpoint = all.iter().find(|e| last(e) == chosen).expect("an endpoint of the list");
            prop_assert_eq!(endpoint.is_ejected(at(0)), tried.len() >= healthy);
            tried.push(chosen);
        }
        prop_assert_eq!(tried.len(), list.len());
    }
}
