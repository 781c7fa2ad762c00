//! Tests of `endpointslice`.

mod hints;
mod lifecycle;
mod packing;
mod properties;

use crate::testing::*;
use portway_api::complete::Endpoint;
use portway_api::{Time, complete::EndpointPort};

/// The only endpoint of the only slice.
fn endpoint_of(api: &TestApi) -> Endpoint {
    let slice = api.only_slice();
    assert_eq!(slice.endpoints.len(), 1, "{slice:#?}");
    slice.endpoints[0].clone()
}

#[test]
fn a_slice_has_the_labels_owner_and_ports_of_its_service() {
    let mut web = service("web");
    let labels =
        [("team", "shop"), ("kubernetes.io/service-name", "no"), ("service.kubernetes.io/headless", "no")];
    web.metadata.get_or_insert_default().labels =
        labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    web.spec.get_or_insert_default().ports[0].app_protocol = Some("kubernetes.io/h2c".to_owned());
    let mut api = TestApi::new().with(web).with(pod("web", 7, "node-a"));
    api.write_all("web");
    let slice = api.only_slice();
    let meta = slice.metadata.clone().unwrap_or_default();
    assert!(meta.name.starts_with("web-") && meta.name.len() == 9, "{}", meta.name);
    assert_eq!((meta.generate_name.as_str(), meta.namespace.as_str()), ("web-", NAMESPACE));
    let mut labels: Vec<_> = meta.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    labels.sort_unstable();
    let managed = ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
    assert_eq!(labels, [managed, ("kubernetes.io/service-name", "web"), ("team", "shop")]);
    let owner = &meta.owner_references[0];
    assert_eq!(
        (owner.kind.as_str(), owner.api_version.as_str(), owner.name.as_str(), owner.uid.as_str()),
        ("Service", "v1", "web", "uid-of-web")
    );
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    let port = EndpointPort {
        name: Some("http".to_owned()),
        protocol: Some("TCP".to_owned()),
        port: Some(8080),
        app_protocol: Some("kubernetes.io/h2c".to_owned()),
    };
    assert_eq!((slice.ports.as_slice(), slice.address_type.as_str()), (&[port][..], "IPv4"));
    let endpoint = &slice.endpoints[0];
    assert_eq!(endpoint.addresses, ["10.244.0.7"]);
    assert_eq!((endpoint.node_name.as_deref(), endpoint.zone.as_deref()), (Some("node-a"), Some("zone-a")));
    let target = endpoint.target_ref.clone().unwrap_or_default();
    assert_eq!(
        (target.kind.as_str(), target.namespace.as_str(), target.name.as_str(), target.uid.as_str()),
        ("Pod", NAMESPACE, "web-00007", "uid-of-web-00007")
    );
}

/// A condition of a Pod, whether the Service publishes unready addresses, and the endpoint's conditions: ready, serving,
/// terminating; none if there is no endpoint.
type ConditionCase = (&'static str, bool, bool, &'static str, bool, Option<(bool, bool, bool)>);

#[test]
fn conditions_follow_the_pod() {
    let cases: [ConditionCase; 11] = [
        ("ready", true, false, "Running", false, Some((true, true, false))),
        ("not ready", false, false, "Running", false, Some((false, false, false))),
        ("not ready, published", false, false, "Running", true, Some((true, false, false))),
        ("terminating and ready", true, true, "Running", false, Some((false, true, true))),
        ("terminating, not ready", false, true, "Running", false, Some((false, false, true))),
        ("terminating, published", true, true, "Running", true, Some((true, true, true))),
        ("terminating, not ready, published", false, true, "Running", true, Some((true, false, true))),
        ("pending with an address", false, false, "Pending", false, Some((false, false, false))),
        ("succeeded", false, false, "Succeeded", false, None),
        ("failed", true, false, "Failed", false, None),
        ("failed, published", true, false, "Failed", true, None),
    ];
    for (case, is_ready, terminating, phase, published, expected) in cases {
        let web = service_with("web", |spec| spec.publish_not_ready_addresses = published);
        let mut api = TestApi::new().with(web).with(pod_with("web", 1, |pod| {
            let status = pod.status.get_or_insert_default();
            status.conditions = vec![ready(is_ready, 2000)];
            status.phase = phase.to_owned();
            let deleted = terminating.then_some(Time { seconds: 3000 });
            pod.metadata.get_or_insert_default().deletion_timestamp = deleted;
        }));
        api.write_all("web");
        let conditions = api.only_slice().endpoints.first().map(|e| e.conditions.unwrap_or_default());
        let conditions = conditions.map(|c| (c.ready, c.serving, c.terminating));
        assert_eq!(conditions, expected.map(|(r, s, t)| (Some(r), Some(s), Some(t))), "{case}");
    }
}

#[test]
fn pods_without_an_address_of_the_family_are_left_out() {
    for (ips, expected) in [
        (&["10.0.0.1"][..], &["10.0.0.1"][..]),
        (&["fd00::1"], &[]),
        (&["fd00::1", "10.0.0.1"], &["10.0.0.1"]),
        (&["010.0.0.1"], &["10.0.0.1"]),
        (&["::ffff:10.0.0.1"], &["10.0.0.1"]),
        (&["not an address"], &[]),
        // The API server would refuse the whole slice.
        (&["127.0.0.1"], &[]),
        (&["169.254.1.1"], &[]),
        (&["0.0.0.0"], &[]),
        (&["224.0.0.1"], &[]),
        (&["not an address", "10.0.0.1"], &["10.0.0.1"]),
        (&[], &[]),
    ] {
        let mut api = TestApi::new().with(service("web")).with(pod_with("web", 1, |pod| {
            let status = pod.status.get_or_insert_default();
            status.pod_ips = ips.iter().map(|ip| portway_api::PodIp { ip: (*ip).to_owned() }).collect();
            status.pod_ip = ips.first().copied().unwrap_or_default().to_owned();
        }));
        api.write_all("web");
        let found: Vec<String> = api.addresses("web").into_iter().map(|(ip, _)| ip).collect();
        assert_eq!(found, expected, "{ips:?}");
    }
}

#[test]
fn named_ports_are_those_of_each_pod() {
    let mut api = TestApi::new()
        .with(service_with_named_ports("web"))
        .with(pod_with_ports(1, &[("http", 8080), ("admin", 9090)]))
        .with(pod_with_ports(2, &[("http", 8081), ("admin", 9090)]))
        .with(pod_with_ports(3, &[("admin", 9090), ("http", 8080)]))
        .with(pod_with_ports(4, &[("http", 8080)]))
        .with(pod_with_ports(5, &[]));
    api.write_all("web");
    let mut found: Vec<(Vec<i32>, usize)> = api
        .slices
        .values()
        .map(|slice| (slice.ports.iter().filter_map(|port| port.port).collect(), slice.endpoints.len()))
        .collect();
    found.sort();
    // A Pod without any of the names is in a slice without ports.
    let expected = [(vec![], 1), (vec![8080], 1), (vec![9090, 8080], 2), (vec![9090, 8081], 1)];
    assert_eq!(found, expected);
    assert_eq!(api.plan("web").writes, [], "the order of ports in a Pod does not matter");
}

#[test]
fn sidecars_have_named_ports_and_other_init_containers_do_not() {
    let web = service_with("web", |spec| spec.ports = vec![port("http", 80, "http".into())]);
    let with = |number, restart: Option<&str>| {
        pod_with("web", number, |pod| {
            let spec = pod.spec.get_or_insert_default();
            spec.containers.clear();
            let mut sidecar = container(&[("http", 8080)]);
            sidecar.restart_policy = restart.map(str::to_owned);
            spec.init_containers = vec![sidecar];
        })
    };
    let mut api = TestApi::new().with(web).with(with(1, Some("Always"))).with(with(2, None));
    api.write_all("web");
    let ports = |slice: &portway_api::complete::EndpointSlice| {
        (slice.ports.len(), slice.endpoints[0].addresses[0].clone())
    };
    let mut found: Vec<_> = api.slices.values().map(ports).collect();
    found.sort();
    assert_eq!(found, [(0, "10.244.0.2".to_owned()), (1, "10.244.0.1".to_owned())]);
}

#[test]
fn a_port_is_of_its_protocol() {
    let web = service_with("web", |spec| {
        let mut dns = port("dns", 53, "http".into());
        dns.protocol = "UDP".to_owned();
        spec.ports = vec![dns, port("http", 53, "http".into())];
    });
    let mut api = TestApi::new().with(web).with(pod("web", 1, "node-a"));
    api.write_all("web");
    let ports: Vec<_> = api.only_slice().ports.iter().map(|port| port.protocol.clone()).collect();
    assert_eq!(ports, [Some("TCP".to_owned())], "the Pod has that name for TCP only");
}

#[test]
fn headless_services_are_labelled_and_need_no_ports() {
    for (cluster_ip, ports, expected) in
        [("None", 1, (true, 1)), ("None", 0, (true, 0)), ("10.96.0.1", 1, (false, 1))]
    {
        let web = service_with("web", |spec| {
            spec.cluster_ip = cluster_ip.to_owned();
            spec.ports.truncate(ports);
        });
        let mut api = TestApi::new().with(web).with(pod("web", 1, "node-a"));
        api.write_all("web");
        let slice = api.only_slice();
        let labels = &slice.metadata.as_ref().expect("metadata").labels;
        let headless = labels.get("service.kubernetes.io/headless").map(String::as_str);
        assert_eq!((headless == Some(""), slice.ports.len()), expected, "{cluster_ip} with {ports} ports");
        assert_eq!(slice.endpoints.len(), 1);
    }
}

#[test]
fn host_names_are_published_for_the_service_that_is_the_subdomain() {
    for (hostname, subdomain, expected) in
        [("db-0", "web", Some("db-0")), ("db-0", "other", None), ("db-0", "", None), ("", "web", None)]
    {
        let mut api = TestApi::new().with(service("web")).with(pod_with("web", 1, |pod| {
            let spec = pod.spec.get_or_insert_default();
            spec.hostname = hostname.to_owned();
            spec.subdomain = subdomain.to_owned();
        }));
        api.write_all("web");
        assert_eq!(endpoint_of(&api).hostname.as_deref(), expected, "{hostname}.{subdomain}");
    }
}

#[test]
fn pods_on_a_node_that_does_not_exist_are_left_out_unless_published() {
    for (published, expected) in [(false, 0), (true, 1)] {
        let web = service_with("web", |spec| spec.publish_not_ready_addresses = published);
        let mut api = TestApi::new().with(web).with(pod("web", 1, "node-z"));
        let plan = api.plan("web");
        assert_eq!(plan.incomplete.is_some(), !published, "it is tried again");
        for reasoned in &plan.writes {
            api.write(&reasoned.write).expect("no conflict");
        }
        assert_eq!(api.addresses("web").len(), expected);
        // The Service is touched when the Node appears.
        let touched = api.apply(node("node-z", "zone-z"));
        assert_eq!(touched.len(), 1);
        api.write_all("web");
        assert_eq!(endpoint_of(&api).zone.as_deref(), Some("zone-z"));
    }
}

#[test]
fn each_family_has_its_slices() {
    let families = |names: &'static [&str]| {
        service_with("web", |spec| spec.ip_families = names.iter().map(|n| (*n).to_owned()).collect())
    };
    let mut api = TestApi::new().with(families(&["IPv4"])).with(pod("web", 1, "node-a"));
    api.write_all("web");
    assert_eq!(api.addresses("web"), [("10.244.0.1".to_owned(), true)]);
    // From single to dual stack: the first slice is not touched.
    api.apply(families(&["IPv4", "IPv6"]));
    let plans = api.write_all("web");
    assert_eq!(plans[0].writes.len(), 1);
    assert_eq!(api.addresses("web").len(), 2);
    // And back.
    api.apply(families(&["IPv4"]));
    let plans = api.write_all("web");
    assert_eq!(plans[0].writes.len(), 1);
    assert_eq!(api.addresses("web"), [("10.244.0.1".to_owned(), true)]);
    // A Service without families is one of an old API server.
    api.apply(service_with("web", |spec| {
        spec.ip_families.clear();
        spec.cluster_ip = "fd00:96::1".to_owned();
    }));
    api.write_all("web");
    assert_eq!(api.addresses("web"), [("fd00::1".to_owned(), true)]);
}
