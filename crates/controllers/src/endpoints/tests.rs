//! Tests of `endpoints`.

use crate::cluster::endpoints::EndpointsState;
use crate::endpoints::reconcile;
use crate::names::{LEADER, OVER_CAPACITY};
use crate::testing::*;
use portway_api::{Endpoints, Service, Time};

/// The addresses that are ready, those that are not, and the ports of each subset.
fn subsets(api: &TestApi) -> Vec<(Vec<String>, Vec<String>, Vec<i32>)> {
    let ips = |list: &[portway_api::EndpointAddress]| list.iter().map(|a| a.ip.clone()).collect::<Vec<_>>();
    let subset = |s: &portway_api::EndpointSubset| {
        (ips(&s.addresses), ips(&s.not_ready_addresses), s.ports.iter().map(|p| p.port).collect())
    };
    api.only_endpoints().subsets.iter().map(subset).collect()
}

#[test]
fn the_object_has_the_name_of_the_service_and_its_labels() {
    let mut web = service("web");
    web.metadata.get_or_insert_default().labels = [("team".to_owned(), "shop".to_owned())].into();
    let mut api = TestApi::new().with(web).with(pod_with("web", 1, |pod| {
        let spec = pod.spec.get_or_insert_default();
        (spec.hostname, spec.subdomain) = ("db-0".to_owned(), "web".to_owned());
    }));
    api.write_endpoints("web");
    let endpoints = api.only_endpoints();
    let meta = endpoints.metadata.clone().unwrap_or_default();
    assert_eq!((meta.namespace.as_str(), meta.name.as_str()), (NAMESPACE, "web"));
    let mut labels: Vec<_> = meta.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    labels.sort_unstable();
    assert_eq!(labels, [("endpoints.kubernetes.io/managed-by", "endpoint-controller"), ("team", "shop")]);
    assert_eq!(meta.owner_references, [], "it has the Service's name and needs no owner");
    let address = &endpoints.subsets[0].addresses[0];
    assert_eq!((address.ip.as_str(), address.hostname.as_str()), ("10.244.0.1", "db-0"));
    assert_eq!(address.node_name.as_deref(), Some("node-a"));
    assert_eq!(address.target_ref.clone().unwrap_or_default().name, "web-00001");
}

#[test]
fn pods_are_ready_unready_or_left_out() {
    for (case, is_ready, terminating, published, expected) in [
        ("ready", true, false, false, (1, 0)),
        ("not ready", false, false, false, (0, 1)),
        ("not ready, published", false, false, true, (1, 0)),
        ("terminating", true, true, false, (0, 0)),
        ("terminating, published", true, true, true, (1, 0)),
    ] {
        let web = service_with("web", |spec| spec.publish_not_ready_addresses = published);
        let mut api = TestApi::new().with(web).with(pod_with("web", 1, |pod| {
            pod.status.get_or_insert_default().conditions = vec![ready(is_ready, 0)];
            pod.metadata.get_or_insert_default().deletion_timestamp =
                terminating.then_some(Time { seconds: 1 });
        }));
        api.write_endpoints("web");
        let found = subsets(&api);
        let counts =
            found.iter().fold((0, 0), |(r, u), (ready, unready, _)| (r + ready.len(), u + unready.len()));
        assert_eq!(counts, expected, "{case}");
    }
}

#[test]
fn addresses_with_the_same_ports_share_a_subset() {
    let mut api = TestApi::new()
        .with(service_with_named_ports("web"))
        .with(pod_with_ports(1, &[("http", 8080), ("admin", 9090)]))
        .with(pod_with_ports(2, &[("http", 8080), ("admin", 9090)]))
        .with(pod_with_ports(3, &[("http", 8081), ("admin", 9090)]))
        .with(pod_with_ports(4, &[]));
    api.write_endpoints("web");
    let all = |numbers: &[u8]| numbers.iter().map(|n| format!("10.244.0.{n}")).collect::<Vec<_>>();
    // A Pod without the names is in no subset. Ports with different addresses are apart.
    let mut found = subsets(&api);
    found.sort();
    assert_eq!(
        found,
        [
            (all(&[1, 2]), vec![], vec![8080]),
            (all(&[1, 2, 3]), vec![], vec![9090]),
            (all(&[3]), vec![], vec![8081])
        ]
    );
}

#[test]
fn the_address_is_of_the_services_first_family() {
    for (families, cluster_ip, expected) in [
        (&["IPv4", "IPv6"][..], "10.96.0.1", "10.244.0.1"),
        (&["IPv6", "IPv4"], "fd00:96::1", "fd00::1"),
        (&[], "fd00:96::1", "fd00::1"),
        // The Pod's first address.
        (&[], "None", "10.244.0.1"),
    ] {
        let web = service_with("web", |spec| {
            spec.ip_families = families.iter().map(|f| (*f).to_owned()).collect();
            spec.cluster_ip = cluster_ip.to_owned();
        });
        let mut api = TestApi::new().with(web).with(pod("web", 1, "node-a"));
        api.write_endpoints("web");
        assert_eq!(subsets(&api)[0].0, [expected], "{families:?} {cluster_ip}");
    }
}

#[test]
fn headless_services_without_ports_have_addresses_without_ports() {
    let web = service_with("web", |spec| {
        spec.cluster_ip = "None".to_owned();
        spec.ports.clear();
    });
    let mut api = TestApi::new().with(web).with(pod("web", 1, "node-a")).with(pod("web", 2, "node-a"));
    api.write_endpoints("web");
    let addresses = vec!["10.244.0.1".to_owned(), "10.244.0.2".to_owned()];
    assert_eq!(subsets(&api), [(addresses, vec![], vec![])]);
    let labels = &api.only_endpoints().metadata.as_ref().expect("metadata").labels;
    assert_eq!(labels.get("service.kubernetes.io/headless").map(String::as_str), Some(""));
}

#[test]
fn at_most_a_thousand_addresses_are_written_those_that_are_ready_first() {
    for (ready_pods, unready_pods, expected, annotated) in [
        (1000, 0, (1000, 0), false),
        (1001, 5, (1000, 0), true),
        (990, 20, (990, 10), true),
        (0, 1200, (0, 1000), true),
    ] {
        let mut api = TestApi::new().with(service("web"));
        for number in 0..ready_pods + unready_pods {
            api.apply(pod_with("web", number, |pod| {
                pod.status.get_or_insert_default().conditions = vec![ready(number < ready_pods, 0)];
            }));
        }
        let plans = api.write_endpoints("web");
        assert_eq!(plans.len(), 1, "one write, and then none");
        let found = subsets(&api);
        let counts =
            found.iter().fold((0, 0), |(r, u), (ready, unready, _)| (r + ready.len(), u + unready.len()));
        assert_eq!(counts, expected, "{ready_pods} and {unready_pods}");
        let annotations = &api.only_endpoints().metadata.as_ref().expect("metadata").annotations;
        assert_eq!(annotations.get(OVER_CAPACITY).map(String::as_str), annotated.then_some("truncated"));
    }
}

#[test]
fn the_annotation_goes_when_there_is_room_again() {
    let mut api = TestApi::new().with(service("web"));
    for number in 0..1001 {
        api.apply(pod("web", number, "node-a"));
    }
    api.write_endpoints("web");
    api.delete::<portway_api::Pod>("web-00000");
    api.write_endpoints("web");
    assert!(
        !api.only_endpoints().metadata.as_ref().expect("metadata").annotations.contains_key(OVER_CAPACITY)
    );
    assert_eq!(subsets(&api)[0].0.len(), 1000);
}

#[test]
fn the_object_is_deleted_with_its_service_and_others_are_left_alone() {
    let deleted = |api: &TestApi, name: &str, was_deleted: bool| {
        let plan = reconcile(&api.cluster, &key(name), None, was_deleted);
        plan.writes.iter().map(|r| r.write.operation()).collect::<Vec<_>>()
    };
    let mut api = TestApi::new().with(service("web")).with(pod("web", 1, "node-a"));
    api.write_endpoints("web");
    api.delete::<Service>("web");
    assert_eq!(deleted(&api, "web", true), ["delete"]);
    assert_eq!(deleted(&api, "web", false), ["delete"], "it is the controller's, and was left over");
    // A person's object without a Service is left alone, and deleted with the Service if there was one.
    api.apply(endpoints_object("mine", &["192.0.2.1"], &[]));
    assert_eq!(deleted(&api, "mine", false), [""; 0]);
    assert_eq!(deleted(&api, "mine", true), ["delete"]);
    let mut lock = endpoints_object("lock", &[], &[]);
    lock.metadata.get_or_insert_default().annotations.insert(LEADER.to_owned(), "{}".to_owned());
    api.apply(lock);
    assert_eq!(deleted(&api, "lock", true), [""; 0], "the lock of a leader election");
}

#[test]
fn services_without_a_selector_are_left_to_the_user() {
    let mut api = TestApi::new()
        .with(service_with("web", |spec| spec.selector.clear()))
        .with(endpoints_object("web", &["192.0.2.1"], &[]));
    assert_eq!(api.write_endpoints("web"), []);
}

#[test]
fn the_order_of_subsets_addresses_and_ports_is_no_reason_to_write() {
    let web = service_with("web", |spec| {
        spec.ports = vec![port("http", 80, 8080.into()), port("admin", 81, 9090.into())];
    });
    let mut api = TestApi::new().with(web).with(pod("web", 1, "node-a")).with(pod("web", 2, "node-a"));
    api.write_endpoints("web");
    // As another release may have written it: apart by port, and in another order.
    let mut object: Endpoints = api.only_endpoints().clone();
    let subset = object.subsets[0].clone();
    let apart = |port: usize| {
        let mut subset = subset.clone();
        subset.ports = vec![subset.ports[port].clone()];
        subset.addresses.reverse();
        subset.addresses[0].target_ref.get_or_insert_default().resource_version = "9".to_owned();
        subset
    };
    object.subsets = vec![apart(1), apart(0)];
    api.apply(object);
    assert_eq!(reconcile(&api.cluster, &key("web"), None, false).writes, []);
}

#[test]
fn what_is_kept_can_be_read_again() {
    let object = endpoints_object("web", &["192.0.2.2", "192.0.2.1"], &["192.0.2.3"]);
    let state = EndpointsState::new(object, true);
    let subsets = state.subsets().expect("kept");
    assert_eq!(subsets.len(), 1);
    assert_eq!(
        subsets[0].addresses.iter().map(|a| a.ip.as_str()).collect::<Vec<_>>(),
        ["192.0.2.1", "192.0.2.2"]
    );
    assert_eq!(subsets[0].not_ready_addresses[0].ip, "192.0.2.3");
}
