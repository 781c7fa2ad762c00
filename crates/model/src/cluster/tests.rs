//! Plans depend on the present objects, not on the history of events, except for which Service held an address first.

use super::*;
use crate::NodeState;
use crate::api::Node as ApiNode;
use crate::api::{EndpointSlice, Event, Object, Resource, Service as ApiService, ServiceCidr};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The beginning and the end of each resource's list.
fn lists() -> [(ClusterEvent, ClusterEvent); 4] {
    fn list<R>() -> (ClusterEvent, ClusterEvent)
    where
        ClusterEvent: From<Event<R>>,
    {
        (Event::<R>::Init.into(), Event::<R>::InitDone.into())
    }
    [list::<ApiService>(), list::<EndpointSlice>(), list::<ApiNode>(), list::<ServiceCidr>()]
}

fn empty() -> Cluster {
    let mut cluster = Cluster::new(Identity { node: "node1".into(), proxy_name: None });
    for (init, done) in lists() {
        cluster.apply(init);
        cluster.apply(done);
    }
    cluster
}

fn object<R: Resource + Into<Object>>(value: Value) -> Object {
    serde_json::from_value::<R>(value).unwrap().into()
}

fn apply(cluster: &mut Cluster, object: &Object) {
    cluster.apply(object.clone());
}

fn delete(cluster: &mut Cluster, name: &str) {
    let (namespace, name) = ("default".to_owned(), name.to_owned());
    cluster.apply(Event::<ApiService>::Delete { namespace, name });
}

/// Service `name` at 10.96.0.`n`; `spec` adds to it.
fn service(name: &str, n: u8, spec: Value) -> Object {
    let mut full = json!({
        "clusterIP": format!("10.96.0.{n}"), "clusterIPs": [format!("10.96.0.{n}"), format!("fd96::{n}")],
        "ports": [{"name": "http", "port": 80}],
    });
    for (key, value) in spec.as_object().unwrap() {
        full[key] = value.clone();
    }
    object::<ApiService>(json!({"metadata": {"namespace": "default", "name": name}, "spec": full}))
}

/// All plans and conflicts of a cluster at this moment.
fn state(cluster: &mut Cluster) -> (Vec<ServiceChange>, Vec<IpNet>, Node, Vec<Rejected>, usize) {
    cluster.touch_all();
    let mut plans = cluster.take_changes().services;
    plans.retain(|c| c.plans != [None, None]);
    let rejected = cluster.rejections().cloned().collect();
    (plans, cluster.service_cidrs(), cluster.node().clone(), rejected, cluster.health_checks().len())
}

fn programmed(cluster: &mut Cluster) -> Vec<String> {
    state(cluster).0.iter().map(|c| c.name.name().to_owned()).collect()
}

/// The IPv4 frontends of a Service.
fn frontends(cluster: &mut Cluster, name: &str) -> Vec<crate::Frontend> {
    let all = state(cluster).0;
    let plan = all.iter().find(|c| c.name.name() == name).and_then(|c| c.plans[0].clone());
    plan.iter().flat_map(|p| p.ports.iter()).flat_map(|p| p.frontends.iter().copied()).collect()
}

/// The Services with a frontend at an address.
fn services_at(cluster: &mut Cluster, ip: &str) -> Vec<String> {
    let names = programmed(cluster);
    let ip = Some(ip.parse().unwrap());
    names.into_iter().filter(|n| frontends(cluster, n).iter().any(|f| f.address == ip)).collect()
}

/// One version of one of a few objects.
fn version() -> impl Strategy<Value = Object> {
    let services = (0..4u8, 0..6u8).prop_map(|(n, v)| {
        let spec = match v {
            0 => json!({}),
            1 => json!({"internalTrafficPolicy": "Local", "sessionAffinity": "ClientIP"}),
            2 => json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            3 => json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                        "healthCheckNodePort": 31000 + u32::from(n),
                        "loadBalancerSourceRanges": ["192.168.0.0/16"]}),
            4 => json!({"ports": [{"name": "http", "port": 80, "nodePort": 30000 + u32::from(n)},
                                  {"name": "dns", "port": 53, "protocol": "UDP"}]}),
            _ => json!({"externalIPs": [format!("198.18.0.{n}")]}),
        };
        service(&format!("s{n}"), n + 1, spec)
    });
    let endpoint = (1..6u8, 0..4u8, 0..3u8, 0..3u8).prop_map(|(ip, condition, node, hint)| {
        let conditions = [
            json!({}),
            json!({"ready": true, "terminating": true}),
            json!({"ready": false, "serving": true, "terminating": true}),
            json!({"ready": false, "serving": false}),
        ];
        let hints = [
            json!({}),
            json!({"forZones": [{"name": "a"}]}),
            json!({"forZones": [{"name": "b"}], "forNodes": [{"name": "node1"}]}),
        ];
        json!({"addresses": [format!("10.244.0.{ip}")], "conditions": conditions[condition as usize],
               "nodeName": (["node1", "node2", ""][node as usize]), "hints": hints[hint as usize]})
    });
    let slices =
        (0..6u8, 0..4u8, prop::collection::vec(endpoint, 0..5)).prop_map(|(name, service, endpoints)| {
            object::<EndpointSlice>(json!({
                "metadata": {"namespace": "default", "name": format!("slice{name}"),
                             "labels": {"kubernetes.io/service-name": format!("s{service}")}},
                "addressType": "IPv4", "endpoints": endpoints,
                "ports": [{"name": "http", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 53}],
            }))
        });
    let nodes = (0..2u8, 0..2u8).prop_map(|(zone, address)| {
        object::<ApiNode>(json!({
            "metadata": {"name": "node1",
                         "labels": {"topology.kubernetes.io/zone": (["a", "b"][zone as usize])}},
            "status": {"addresses": [{"type": "InternalIP", "address": format!("192.168.{address}.1")}]},
        }))
    });
    let cidrs = (0..2u8, 0..2u8).prop_map(|(name, range)| {
        let spec = json!({"cidrs": [format!("10.{}.0.0/16", 96 + range)]});
        object::<ServiceCidr>(json!({"metadata": {"name": format!("range{name}")}, "spec": spec}))
    });
    prop_oneof![4 => services, 6 => slices, 1 => nodes, 1 => cidrs]
}

fn key(object: &Object) -> (ResourceType, String) {
    (object.resource_type(), object.metadata().unwrap().name.clone())
}

/// The last version of each object.
fn last_versions(all: &[Object]) -> Vec<Object> {
    let latest: BTreeMap<(ResourceType, String), Object> = all.iter().map(|o| (key(o), o.clone())).collect();
    latest.into_values().collect()
}

proptest! {
    #[test]
    fn plans_do_not_depend_on_the_order_of_events(
        history in prop::collection::vec((version(), any::<bool>()), 0..25),
        shuffle in any::<u64>(),
    ) {
        let mut lived = empty();
        for (object, take) in &history {
            apply(&mut lived, object);
            if *take {
                lived.take_changes();
            }
        }
        let objects: Vec<Object> = history.into_iter().map(|(o, _)| o).collect();
        let mut latest = last_versions(&objects);
        latest.sort_by_cached_key(|o| {
            let text = format!("{:?}", key(o));
            text.bytes().fold(shuffle, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
        });
        let mut fresh = empty();
        latest.iter().for_each(|o| apply(&mut fresh, o));
        prop_assert_eq!(state(&mut lived), state(&mut fresh));
    }

    #[test]
    fn every_changed_plan_is_returned(history in prop::collection::vec(version(), 0..25)) {
        let mut cluster = empty();
        let mut returned: BTreeMap<ServiceName, ServiceChange> = BTreeMap::new();
        for object in &history {
            apply(&mut cluster, object);
            for change in cluster.take_changes().services {
                returned.insert(change.name.clone(), change);
            }
        }
        returned.retain(|_, c| c.plans != [None, None]);
        prop_assert_eq!(returned.into_values().collect::<Vec<_>>(), state(&mut cluster).0);
    }

    #[test]
    fn a_relist_equals_a_fresh_start(
        before in prop::collection::vec(version(), 0..15),
        after in prop::collection::vec(version(), 0..15),
    ) {
        let mut lived = empty();
        before.iter().for_each(|o| apply(&mut lived, o));
        lived.take_changes();
        let latest = last_versions(&after);
        for (init, done) in lists() {
            let listed = init.resource_type();
            lived.apply(init);
            latest.iter().filter(|o| o.resource_type() == listed).for_each(|o| apply(&mut lived, o));
            lived.apply(done);
        }
        let mut fresh = empty();
        latest.iter().for_each(|o| apply(&mut fresh, o));
        let (mut lived, mut fresh) = (state(&mut lived), state(&mut fresh));
        if fresh.2.state == NodeState::Missing {
            // The fields of a deleted Node are kept, and affect plans; only its state is compared.
            prop_assert_eq!(lived.2.state, NodeState::Missing);
            (lived.2, fresh.2) = Default::default();
            for change in lived.0.iter_mut().chain(&mut fresh.0) {
                change.plans = [None, None];
            }
        }
        prop_assert_eq!(lived, fresh);
    }
}

#[test]
fn no_changes_are_returned_before_all_lists_are_complete() {
    let mut cluster = Cluster::new(Identity { node: "node1".into(), proxy_name: None });
    let web = service("web", 1, json!({}));
    for (i, (init, done)) in lists().into_iter().take(3).enumerate() {
        assert!(!cluster.ready(), "after {i} lists");
        assert_eq!(cluster.take_changes(), Changes::default());
        cluster.apply(init);
        if i == 0 {
            apply(&mut cluster, &web);
        }
        cluster.apply(done);
    }
    assert!(cluster.ready());
    assert_eq!(cluster.take_changes().services.len(), 1);
    assert!(!cluster.has_changes());
}

#[test]
fn a_second_service_with_the_same_address_waits_and_takes_over() {
    let rows: [(&str, Value, Value, &str, &str); 5] = [
        (
            "cluster IP",
            json!({}),
            json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]}),
            "spec.clusterIPs[0]",
            "10.96.0.1 is already held by Service default/first",
        ),
        (
            "node port",
            json!({"ports": [{"port": 80, "nodePort": 30001}]}),
            json!({"ports": [{"port": 81, "nodePort": 30001}]}),
            "spec.ports[0].nodePort",
            "node port 30001/TCP is already held by Service default/first",
        ),
        (
            "external IP",
            json!({"externalIPs": ["198.18.0.1"]}),
            json!({"externalIPs": ["198.18.0.9", "198.18.0.1"]}),
            "spec.externalIPs[1]",
            "198.18.0.1 port 80/TCP is already held by Service default/first",
        ),
        (
            "another Service's cluster IP as external IP",
            json!({}),
            json!({"externalIPs": ["10.96.0.1"]}),
            "spec.externalIPs[0]",
            "10.96.0.1 port 80/TCP is already held by Service default/first",
        ),
        (
            "health check",
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000}),
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000}),
            "spec.healthCheckNodePort",
            "node port 31000/TCP is already held by Service default/first",
        ),
    ];
    for (claim, first, second, field, reason) in rows {
        let mut cluster = empty();
        apply(&mut cluster, &service("first", 1, first));
        cluster.take_changes();
        let second = service("second", 2, second);
        apply(&mut cluster, &second);
        cluster.take_changes();
        let rejected: Vec<(String, String)> =
            cluster.take_rejections().into_iter().map(|r| (r.field, r.reason)).collect();
        assert_eq!(rejected, [(field.to_owned(), reason.to_owned())], "{claim}");
        let before = frontends(&mut cluster, "second");
        delete(&mut cluster, "first");
        let changed: Vec<_> =
            cluster.take_changes().services.into_iter().map(|c| (c.name, c.plans[0].is_some())).collect();
        let name = |n| ServiceName::new("default", n);
        assert_eq!(changed, [(name("first"), false), (name("second"), true)], "{claim}");
        // The second Service had its other frontends before, and now has the contested one too.
        let after = frontends(&mut cluster, "second");
        let checked = cluster.health_checks().contains_key(&name("second"));
        assert!(before.iter().all(|f| after.contains(f)), "{claim}: {before:?}, {after:?}");
        assert!(after.len() > before.len() || checked, "{claim}: {before:?}, {after:?}");
        assert_eq!(before.is_empty(), claim == "cluster IP", "{claim}: {before:?}");
        assert_eq!(
            (programmed(&mut cluster), cluster.rejections().count()),
            (vec!["second".to_owned()], 0),
            "{claim}"
        );
    }
}

#[test]
fn a_released_address_goes_to_the_next_service() {
    let mut cluster = empty();
    let external = |ip: &str| json!({"externalIPs": [ip]});
    apply(&mut cluster, &service("first", 1, external("198.18.0.1")));
    apply(&mut cluster, &service("second", 2, external("198.18.0.1")));
    apply(&mut cluster, &service("third", 3, external("198.18.0.1")));
    assert_eq!(services_at(&mut cluster, "198.18.0.1"), ["first"]);
    apply(&mut cluster, &service("first", 1, external("198.18.0.2")));
    assert_eq!(services_at(&mut cluster, "198.18.0.1"), ["second"]);
    delete(&mut cluster, "second");
    assert_eq!(services_at(&mut cluster, "198.18.0.1"), ["third"]);
}

#[test]
fn a_service_that_loses_one_address_keeps_the_others() {
    let mut cluster = empty();
    let external = |ips: &[&str]| json!({"externalIPs": ips});
    apply(&mut cluster, &service("xx", 1, external(&["198.18.0.1"])));
    apply(&mut cluster, &service("yy", 2, external(&["198.18.0.2"])));
    cluster.take_changes();
    apply(&mut cluster, &service("xx", 1, external(&["198.18.0.1", "198.18.0.2"])));
    apply(&mut cluster, &service("yy", 2, external(&["198.18.0.2", "198.18.0.1"])));
    for (ip, name) in [("198.18.0.1", "xx"), ("198.18.0.2", "yy"), ("10.96.0.1", "xx"), ("10.96.0.2", "yy")] {
        assert_eq!(services_at(&mut cluster, ip), [name], "{ip}");
    }
}

#[test]
fn a_cluster_ip_wins_over_external_addresses_in_every_order() {
    let victim = || service("victim", 5, json!({}));
    let thief = || service("thief", 9, json!({"externalIPs": ["10.96.0.5", "203.0.113.1"]}));
    // Another port of the cluster IP is not the thief's either.
    let other_port =
        || service("other", 8, json!({"externalIPs": ["10.96.0.5"], "ports": [{"name": "x", "port": 81}]}));
    for reverse in [false, true] {
        let mut cluster = empty();
        cluster.take_changes();
        let mut objects = [thief(), other_port(), victim()];
        if reverse {
            objects.reverse();
        }
        for object in &objects {
            apply(&mut cluster, object);
            cluster.take_changes();
        }
        assert_eq!(services_at(&mut cluster, "10.96.0.5"), ["victim"]);
        assert_eq!(services_at(&mut cluster, "203.0.113.1"), ["thief"], "its other addresses work");
        let losers: Vec<String> = cluster.rejections().map(ToString::to_string).collect();
        assert_eq!(losers.len(), 2, "{losers:?}");
        assert!(losers[1].contains(
            "spec.externalIPs[0]: 10.96.0.5 port 80/TCP is already held by Service default/victim"
        ));
        // Without the Service whose cluster IP it is, the address is an ordinary one; the plans of the others change.
        delete(&mut cluster, "victim");
        let names: Vec<String> =
            cluster.take_changes().services.iter().map(|c| c.name.name().to_owned()).collect();
        assert_eq!(names, ["other", "thief", "victim"]);
        assert_eq!(services_at(&mut cluster, "10.96.0.5"), ["other", "thief"]);
        assert_eq!(cluster.rejections().count(), 0);
        apply(&mut cluster, &victim());
        assert_eq!(services_at(&mut cluster, "10.96.0.5"), ["victim"]);
    }
}

#[test]
fn a_cluster_ip_wins_over_an_external_address_that_has_lost_a_port() {
    let mut cluster = empty();
    let ports = |all: &[u16]| {
        let ports: Vec<_> =
            all.iter().map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        service("thief", 9, json!({"externalIPs": ["10.96.0.5"], "ports": ports}))
    };
    apply(&mut cluster, &ports(&[80, 443]));
    apply(&mut cluster, &ports(&[80]));
    assert_eq!(services_at(&mut cluster, "10.96.0.5"), ["thief"]);
    cluster.take_changes();
    apply(&mut cluster, &service("victim", 5, json!({})));
    let changed: Vec<String> =
        cluster.take_changes().services.iter().map(|c| c.name.name().to_owned()).collect();
    assert_eq!(changed, ["thief", "victim"]);
    assert_eq!(services_at(&mut cluster, "10.96.0.5"), ["victim"]);
    assert_eq!(cluster.rejections().count(), 1);
}

#[test]
fn a_node_address_that_cannot_be_used_is_left_out_and_reported() {
    let mut cluster = empty();
    let node = json!({"metadata": {"name": "node1"}, "spec": {"podCIDRs": ["010.244.1.0/24", "nonsense"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.050.011"},
            {"type": "InternalIP", "address": "x"}, {"type": "Hostname", "address": "node1"}]}});
    cluster.apply(ClusterEvent::Node(Event::Apply(serde_json::from_value(node).unwrap())));
    assert_eq!(cluster.node().addresses, ["192.168.50.11".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(cluster.node().pod_cidrs, ["10.244.1.0/24".parse::<ipnet::IpNet>().unwrap()]);
    let faults: Vec<String> = cluster.rejections().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults[0].contains("status.addresses[1].address: \"x\" is not an IPv4 or IPv6 address"),
        "{faults:?}"
    );
    assert!(faults[1].contains("spec.podCIDRs[1]"), "{faults:?}");
}

#[test]
fn different_protocols_and_ports_are_no_conflict() {
    let mut cluster = empty();
    let at = |protocol: &str, port: u16| {
        json!({"externalIPs": ["198.18.0.1"],
        "ports": [{"port": port, "protocol": protocol, "nodePort": 30001}]})
    };
    apply(&mut cluster, &service("udp", 1, at("UDP", 53)));
    apply(&mut cluster, &service("tcp", 2, at("TCP", 53)));
    assert_eq!(programmed(&mut cluster), ["tcp", "udp"]);
}

#[test]
fn at_startup_the_older_service_holds_the_address() {
    let mut cluster = empty();
    for (name, n, created) in [("young", 1, "2025-01-02T00:00:00Z"), ("old", 2, "2025-01-01T00:00:00Z")] {
        let Object::Service(mut object) = service(name, n, json!({"externalIPs": ["198.18.0.1"]})) else {
            return;
        };
        let meta = object.metadata.as_mut().unwrap();
        meta.creation_timestamp = Some(serde_json::from_value(json!(created)).unwrap());
        apply(&mut cluster, &Object::Service(object));
    }
    assert_eq!(services_at(&mut cluster, "198.18.0.1"), ["old"]);
}

#[test]
fn a_conflict_is_reported_once_and_lasts_until_resolved() {
    let mut cluster = empty();
    let second = service("second", 2, json!({"externalIPs": ["10.96.0.1"]}));
    apply(&mut cluster, &service("first", 1, json!({})));
    apply(&mut cluster, &second);
    cluster.take_changes();
    let classes = |c: &Cluster| c.rejections().map(|r| r.class).collect::<Vec<_>>();
    assert_eq!((classes(&cluster), cluster.take_rejections().len()), (vec!["conflict"], 1));
    // The same object again, as after a change of its labels: the conflict lasts and is not reported again.
    apply(&mut cluster, &second);
    cluster.take_changes();
    assert_eq!((classes(&cluster), cluster.take_rejections().len()), (vec!["conflict"], 0));
    // The same objects in a list.
    cluster.apply(Event::<ApiService>::Init);
    apply(&mut cluster, &service("first", 1, json!({})));
    apply(&mut cluster, &second);
    cluster.apply(Event::<ApiService>::InitDone);
    cluster.take_changes();
    assert_eq!((classes(&cluster), cluster.take_rejections().len()), (vec!["conflict"], 0));
    // An invalid field besides the conflict, then corrected.
    apply(&mut cluster, &service("second", 2, json!({"externalIPs": ["nonsense", "10.96.0.1"]})));
    cluster.take_changes();
    assert_eq!((classes(&cluster), cluster.take_rejections().len()), (vec!["bad-address", "conflict"], 1));
    apply(&mut cluster, &second);
    cluster.take_changes();
    assert_eq!(classes(&cluster), ["conflict"]);
    // The Service releases its addresses.
    apply(&mut cluster, &service("second", 2, json!({"clusterIP": "None", "clusterIPs": ["None"]})));
    cluster.take_changes();
    assert_eq!(classes(&cluster), [""; 0]);
}

#[test]
fn a_list_without_this_node_marks_it_missing() {
    let mut cluster = empty();
    assert_eq!(cluster.node().state, NodeState::Missing);
    let node = |name: &str| object::<ApiNode>(json!({"metadata": {"name": name}}));
    apply(&mut cluster, &node("node1"));
    assert_eq!(cluster.node().state, NodeState::Present);
    cluster.take_changes();
    cluster.apply(Event::<ApiNode>::Init);
    apply(&mut cluster, &node("node2"));
    cluster.apply(Event::<ApiNode>::InitDone);
    assert_eq!(cluster.take_changes().node.map(|n| n.state), Some(NodeState::Missing));
}

#[test]
fn an_undecodable_object_in_a_relist_keeps_its_last_version() {
    let mut cluster = empty();
    apply(&mut cluster, &service("a", 1, json!({})));
    apply(&mut cluster, &service("b", 2, json!({})));
    let undecodable = |cluster: &mut Cluster, name: &str| {
        let meta = ObjectMeta { namespace: "default".into(), name: name.into(), ..ObjectMeta::default() };
        cluster.reject_undecodable(ApiService::TYPE, &meta, "invalid type".into());
    };
    cluster.apply(Event::<ApiService>::Init);
    undecodable(&mut cluster, "b");
    cluster.apply(Event::<ApiService>::InitDone);
    assert_eq!(programmed(&mut cluster), ["b"], "a was not in the list, b was but could not be decoded");
    let reasons = |cluster: &mut Cluster| -> Vec<String> {
        cluster.take_rejections().iter().map(ToString::to_string).collect()
    };
    assert_eq!(reasons(&mut cluster), ["Service default/b: invalid type"]);
    // Reported once, and gone with the next version that can be decoded.
    undecodable(&mut cluster, "b");
    assert_eq!(reasons(&mut cluster), [""; 0]);
    apply(&mut cluster, &service("b", 3, json!({})));
    assert_eq!((cluster.rejections().count(), services_at(&mut cluster, "10.96.0.3").len()), (0, 1));
}

#[test]
fn services_of_other_proxies_are_ignored() {
    let labelled = |proxy: &str| {
        let Object::Service(mut object) = service("web", 1, json!({})) else { panic!() };
        let labels = &mut object.metadata.as_mut().unwrap().labels;
        labels.insert(PROXY_NAME.to_owned(), proxy.to_owned());
        Object::Service(object)
    };
    let mut cluster = empty();
    apply(&mut cluster, &labelled("other"));
    assert_eq!(programmed(&mut cluster), [""; 0]);
    apply(&mut cluster, &service("web", 1, json!({})));
    assert_eq!(programmed(&mut cluster), ["web"]);
    apply(&mut cluster, &labelled("other"));
    assert_eq!(programmed(&mut cluster), [""; 0]);
    cluster.identity.proxy_name = Some("other".into());
    apply(&mut cluster, &labelled("other"));
    assert_eq!(programmed(&mut cluster), ["web"]);
}

#[test]
fn an_endpoint_in_two_slices_is_used_if_one_is_not_terminating() {
    let slice = |name: &str, conditions: Value| {
        object::<EndpointSlice>(json!({
            "metadata": {"namespace": "default", "name": name,
                         "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["10.244.0.1"], "conditions": conditions}],
        }))
    };
    let terminating = json!({"ready": false, "serving": false, "terminating": true});
    for (first, second) in [(json!({}), terminating.clone()), (terminating, json!({}))] {
        let mut cluster = empty();
        apply(&mut cluster, &service("web", 1, json!({})));
        apply(&mut cluster, &slice("a", first));
        apply(&mut cluster, &slice("b", second));
        let plan = cluster.take_changes().services[0].plans[0].clone().unwrap();
        assert_eq!(plan.ports[0].cluster.len(), 1);
    }
}

#[test]
fn a_source_range_of_all_addresses_is_no_limit_in_its_family() {
    let ranges = |list: &[&str]| {
        let mut cluster = empty();
        apply(&mut cluster, &service("web", 1, json!({"loadBalancerSourceRanges": list})));
        let plans = cluster.take_changes().services.remove(0).plans;
        plans.map(|p| p.unwrap().ports[0].source_ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(ranges(&["192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32"]), [vec![], vec!["2001:db8::/32"]]);
    // A range within another one is removed; host bits are ignored.
    let nested = ["192.0.2.7/24", " 192.0.2.0/25", "192.0.2.0/24", "198.51.100.0/24"];
    assert_eq!(ranges(&nested), [vec!["192.0.2.0/24", "198.51.100.0/24"], vec![]]);
}
