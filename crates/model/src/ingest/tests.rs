//! Every kind of malformed field rejects only its object and is named, and the last valid version stays in force.

use crate::api::{self, Event};
use crate::{Cluster, ClusterEvent, Identity, Rejected};
use serde_json::{Value, json};

fn cluster() -> Cluster {
    let mut cluster = Cluster::new(Identity { node: "node1".into(), proxy_name: None });
    cluster.apply(Event::<api::Service>::InitDone);
    cluster.apply(Event::<api::EndpointSlice>::InitDone);
    cluster.apply(Event::<api::Node>::InitDone);
    cluster.apply(service(valid_service("bystander", 9)));
    cluster.apply(service(valid_service("web", 1)));
    cluster.apply(slice(valid_slice()));
    let first = cluster.take_changes();
    assert_eq!(first.services.iter().filter(|s| s.plans[0].is_some()).count(), 2);
    cluster
}

fn service(object: Value) -> ClusterEvent {
    Event::Apply(serde_json::from_value::<api::Service>(object).unwrap()).into()
}

fn slice(object: Value) -> ClusterEvent {
    Event::Apply(serde_json::from_value::<api::EndpointSlice>(object).unwrap()).into()
}

fn valid_service(name: &str, n: u8) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}")},
        "spec": {
            "type": "LoadBalancer", "clusterIP": format!("10.96.0.{n}"),
            "clusterIPs": [format!("10.96.0.{n}"), format!("fd96::{n}")],
            "externalIPs": [], "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000 + u32::from(n),
            "ports": [{"name": "http", "port": 80, "nodePort": 30000 + u32::from(n)},
                      {"name": "https", "port": 443}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": format!("203.0.113.{n}")}]}},
    })
}

fn valid_slice() -> Value {
    json!({
        "metadata": {"namespace": "default", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": ["10.244.1.1"]}, {"addresses": ["10.244.1.2"]}],
    })
}

/// Applies a valid object with `value` at `pointer`, and checks that only it is rejected, for that field and reason.
fn rejects(valid: &Value, event: fn(Value) -> ClusterEvent, row: &(&str, Value, &str, &str, &str)) {
    let (pointer, value, field, reason, class) = row;
    let mut cluster = cluster();
    let mut malformed = valid.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match malformed.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}")) {
        Value::Array(list) if key == "-" => list.push(value.clone()),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
        parent => parent[key] = value.clone(),
    }
    cluster.apply(event(malformed));
    let rejections: Vec<&Rejected> = cluster.rejections().collect();
    assert_eq!(rejections.len(), 1, "{pointer} = {value} is accepted");
    let found = (rejections[0].field.as_str(), rejections[0].reason.as_str(), rejections[0].class);
    assert_eq!(found, (*field, *reason, *class), "{pointer} = {value}");
    assert_eq!(cluster.take_changes().services, [], "{pointer}: the last valid version stays");
    assert_eq!(cluster.take_rejections().len(), 1);
    // The rejection is reported once, and ends when the object is corrected.
    cluster.touch_all();
    assert_eq!(cluster.take_changes().services.iter().filter(|s| s.plans[0].is_some()).count(), 2);
    cluster.apply(event(valid.clone()));
    assert_eq!(cluster.rejections().count(), 0, "{pointer}: corrected, but still rejected");
    assert_eq!(cluster.take_rejections(), []);
}

#[test]
fn malformed_services_are_rejected() {
    let port =
        |name: &str, port: i32, node_port: i32| json!({"name": name, "port": port, "nodePort": node_port});
    let spec_ip = "/spec/clusterIPs/0";
    let rows = [
        (
            spec_ip,
            json!("10.96.0.300"),
            "spec.clusterIPs[0]",
            "\"10.96.0.300\" is not an IPv4 or IPv6 address",
            "bad-address",
        ),
        (
            spec_ip,
            json!("127.0.0.1"),
            "spec.clusterIPs[0]",
            "127.0.0.1 is a loopback address and cannot be served",
            "bad-address",
        ),
        (
            "/spec/clusterIPs/1",
            json!("10.96.0.77"),
            "spec.clusterIPs[1]",
            "10.96.0.77 is a second IPv4 address; a Service has one per family",
            "wrong-family",
        ),
        (
            "/spec/ipFamilies",
            json!(["IPv6", "IPv4"]),
            "spec.clusterIPs[0]",
            "10.96.0.1 is IPv4, but spec.ipFamilies[0] says IPv6",
            "wrong-family",
        ),
        (
            "/spec/clusterIP",
            json!("10.96.0.2"),
            "spec.clusterIP",
            "\"10.96.0.2\" contradicts spec.clusterIPs[0], which is 10.96.0.1",
            "contradiction",
        ),
        (
            "/spec/externalIPs/-",
            json!("example.org"),
            "spec.externalIPs[0]",
            "\"example.org\" is not an IPv4 or IPv6 address",
            "bad-address",
        ),
        (
            "/spec/externalIPs/-",
            json!("169.254.169.254"),
            "spec.externalIPs[0]",
            "169.254.169.254 is a link-local address and cannot be served",
            "bad-address",
        ),
        (
            "/spec/externalIPs/-",
            json!("::"),
            "spec.externalIPs[0]",
            ":: is the unspecified address and cannot be served",
            "bad-address",
        ),
        (
            "/status/loadBalancer/ingress/0/ip",
            json!("224.0.0.1"),
            "status.loadBalancer.ingress[0].ip",
            "224.0.0.1 is a multicast address and cannot be served",
            "bad-address",
        ),
        (
            "/status/loadBalancer/ingress/0/ipMode",
            json!("Tunnel"),
            "status.loadBalancer.ingress[0].ipMode",
            "\"Tunnel\" is neither VIP nor Proxy",
            "bad-value",
        ),
        (
            "/spec/loadBalancerSourceRanges/0",
            json!("192.0.2.0"),
            "spec.loadBalancerSourceRanges[0]",
            "\"192.0.2.0\" is not a CIDR such as 192.0.2.0/24",
            "bad-address",
        ),
        (
            "/spec/ports/0/port",
            json!(0),
            "spec.ports[0].port",
            "0 is not a port, which is 1 to 65535",
            "bad-port",
        ),
        (
            "/spec/ports/1/port",
            json!(65_616),
            "spec.ports[1].port",
            "65616 is not a port, which is 1 to 65535",
            "bad-port",
        ),
        (
            "/spec/ports/1/port",
            json!(-1),
            "spec.ports[1].port",
            "-1 is not a port, which is 1 to 65535",
            "bad-port",
        ),
        (
            "/spec/ports/0/nodePort",
            json!(70_000),
            "spec.ports[0].nodePort",
            "70000 is not a port, which is 1 to 65535",
            "bad-port",
        ),
        (
            "/spec/ports/0/protocol",
            json!("tcp"),
            "spec.ports[0].protocol",
            "\"tcp\" is none of TCP, UDP, SCTP",
            "bad-value",
        ),
        (
            "/spec/ports/-",
            port("http", 81, 0),
            "spec.ports[2].name",
            "\"http\" is also the name of spec.ports[0]",
            "duplicate",
        ),
        (
            "/spec/ports/-",
            port("web", 80, 0),
            "spec.ports[2].port",
            "80/TCP is also spec.ports[0]",
            "duplicate",
        ),
        (
            "/spec/ports/-",
            port("web", 81, 30001),
            "spec.ports[2].nodePort",
            "30001/TCP is also spec.ports[0]'s",
            "duplicate",
        ),
        (
            "/spec/externalTrafficPolicy",
            json!("Nearby"),
            "spec.externalTrafficPolicy",
            "\"Nearby\" is neither Cluster nor Local",
            "bad-value",
        ),
        (
            "/spec/internalTrafficPolicy",
            json!("local"),
            "spec.internalTrafficPolicy",
            "\"local\" is neither Cluster nor Local",
            "bad-value",
        ),
        (
            "/spec/sessionAffinity",
            json!("Cookie"),
            "spec.sessionAffinity",
            "\"Cookie\" is neither None nor ClientIP",
            "bad-value",
        ),
        (
            "/spec/healthCheckNodePort",
            json!(100_000),
            "spec.healthCheckNodePort",
            "100000 is not a port, which is 1 to 65535",
            "bad-port",
        ),
    ];
    let valid = valid_service("web", 1);
    rows.iter().for_each(|row| rejects(&valid, service, row));
    let mut sticky = valid;
    sticky["spec"]["sessionAffinity"] = json!("ClientIP");
    let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    for (seconds, reason) in [(0, "0 is not within 1 to 86400"), (86_401, "86401 is not within 1 to 86400")] {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        rejects(&sticky, service, &("/spec/sessionAffinityConfig", config, field, reason, "bad-value"));
    }
}

#[test]
fn malformed_slices_are_rejected() {
    let rows = [
        (
            "/endpoints/1/addresses/0",
            json!("pod.example"),
            "endpoints[1].addresses[0]",
            "\"pod.example\" is not an IPv4 or IPv6 address",
            "bad-address",
        ),
        (
            "/endpoints/1/addresses/0",
            json!("fd10::1"),
            "endpoints[1].addresses[0]",
            "fd10::1 is IPv6, but addressType says IPv4",
            "wrong-family",
        ),
        ("/endpoints/0/addresses", json!([]), "endpoints[0].addresses", "is empty", "bad-address"),
        ("/addressType", json!("IP"), "addressType", "\"IP\" is none of IPv4, IPv6, FQDN", "bad-value"),
        (
            "/ports/0/protocol",
            json!("QUIC"),
            "ports[0].protocol",
            "\"QUIC\" is none of TCP, UDP, SCTP",
            "bad-value",
        ),
        (
            "/ports/0/port",
            json!(65_536),
            "ports[0].port",
            "65536 is not a port, which is 1 to 65535",
            "bad-port",
        ),
    ];
    rows.iter().for_each(|row| rejects(&valid_slice(), slice, row));
}

#[test]
fn a_malformed_service_cidr_is_rejected_and_the_valid_one_stays() {
    let mut cluster = cluster();
    let apply = |cluster: &mut Cluster, cidrs: &[&str]| {
        let spec = Some(api::ServiceCidrSpec { cidrs: cidrs.iter().map(|c| (*c).to_owned()).collect() });
        let metadata = Some(api::ObjectMeta { name: "kubernetes".into(), ..Default::default() });
        cluster.apply(Event::Apply(api::ServiceCidr { metadata, spec }));
    };
    apply(&mut cluster, &["10.96.0.0/16", "fd96::/112"]);
    assert!(cluster.take_changes().service_cidrs.is_some());
    apply(&mut cluster, &["10.96.0.0/16", "fd96::/129"]);
    let messages: Vec<String> = cluster.take_rejections().iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        ["ServiceCIDR kubernetes: spec.cidrs[1]: \"fd96::/129\" is not a CIDR such as 10.96.0.0/12"]
    );
    assert_eq!((cluster.service_cidrs().len(), cluster.take_changes().service_cidrs), (2, None));
}

#[test]
fn objects_that_a_proxy_ignores_are_not_rejected() {
    let mut cluster = cluster();
    let changed = |cluster: &mut Cluster, patch: Value| {
        let mut object = valid_service("web", 1);
        for (key, value) in patch.as_object().unwrap() {
            object["spec"][key] = value.clone();
        }
        cluster.apply(service(object));
        let changes = cluster.take_changes().services;
        assert_eq!(cluster.rejections().count(), 0);
        changes.iter().all(|c| c.plans == [None, None])
    };
    assert!(changed(&mut cluster, json!({"type": "ExternalName"})));
    assert!(changed(&mut cluster, json!({"clusterIP": "None", "clusterIPs": ["None"]})));
    assert!(changed(&mut cluster, json!({"clusterIP": "", "clusterIPs": []})));
    let mut names = valid_slice();
    names["addressType"] = json!("FQDN");
    names["endpoints"] = json!([{"addresses": ["pod.example"]}]);
    cluster.apply(slice(names));
    assert_eq!(cluster.rejections().count(), 0);
    let mut nothing = valid_slice();
    nothing["ports"] = json!([{"name": "http"}, {"name": "https", "port": 0}]);
    cluster.apply(slice(nothing));
    assert_eq!(cluster.rejections().count(), 0);
}
