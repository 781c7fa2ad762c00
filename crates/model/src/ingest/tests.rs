//! Every kind of value that cannot be used is named and left out, and everything else is programmed.

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

/// A valid object with `value` at `pointer`.
fn changed(valid: &Value, pointer: &str, value: &Value) -> Value {
    let mut malformed = valid.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match malformed.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}")) {
        Value::Array(list) if key == "-" => list.push(value.clone()),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
        parent => parent[key] = value.clone(),
    }
    malformed
}

/// Applies a valid object with `value` at `pointer`, and checks that this field is reported, for that reason.
fn reports(valid: &Value, event: fn(Value) -> ClusterEvent, row: &(&str, Value, &str, &str, &str)) {
    let (pointer, value, field, reason, class) = row;
    let mut cluster = cluster();
    let malformed = changed(valid, pointer, value);
    cluster.apply(event(malformed.clone()));
    let rejections: Vec<&Rejected> = cluster.rejections().collect();
    let first = rejections.first().unwrap_or_else(|| panic!("{pointer} = {value} is accepted"));
    let found = (first.field.as_str(), first.reason.as_str(), first.class);
    assert_eq!(found, (*field, *reason, *class), "{pointer} = {value}");
    let count = rejections.len();
    // A rejection is reported once, and ends when the object is corrected.
    assert_eq!(cluster.take_rejections().len(), count);
    cluster.apply(event(malformed));
    cluster.touch_all();
    let bystander = cluster.take_changes().services.into_iter().find(|s| s.name.name() == "bystander");
    assert!(bystander.is_some_and(|s| s.plans[0].is_some()), "{pointer}");
    assert_eq!(cluster.take_rejections(), [], "{pointer} is reported twice");
    cluster.apply(event(valid.clone()));
    assert_eq!(cluster.rejections().count(), 0, "{pointer}: corrected, but still rejected");
    assert_eq!(cluster.take_rejections(), []);
}

#[test]
fn values_of_services_that_cannot_be_used_are_reported() {
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
            "\"Nearby\" is neither Cluster nor Local; Cluster is used",
            "bad-value",
        ),
        (
            "/spec/internalTrafficPolicy",
            json!("local"),
            "spec.internalTrafficPolicy",
            "\"local\" is neither Cluster nor Local; Cluster is used",
            "bad-value",
        ),
        (
            "/spec/sessionAffinity",
            json!("Cookie"),
            "spec.sessionAffinity",
            "\"Cookie\" is neither None nor ClientIP; None is used",
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
    rows.iter().for_each(|row| reports(&valid, service, row));
    let mut sticky = valid;
    sticky["spec"]["sessionAffinity"] = json!("ClientIP");
    let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    for (seconds, reason) in [
        (0, "0 is not within 1 to 86400; 10800 is used"),
        (86_401, "86401 is not within 1 to 86400; 10800 is used"),
    ] {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        reports(&sticky, service, &("/spec/sessionAffinityConfig", config, field, reason, "bad-value"));
    }
}

#[test]
fn values_of_slices_that_cannot_be_used_are_reported() {
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
    rows.iter().for_each(|row| reports(&valid_slice(), slice, row));
}

/// The IPv4 plan of `web` after one value was changed: its frontends, policies, affinity, source ranges and endpoints.
fn programmed(valid: &Value, event: fn(Value) -> ClusterEvent, pointer: &str, value: &Value) -> String {
    let mut cluster = cluster();
    cluster.apply(event(changed(valid, pointer, value)));
    cluster.touch_all();
    let web = cluster.take_changes().services.into_iter().find(|s| s.name.name() == "web").unwrap();
    let partial: Vec<bool> = cluster.rejections().map(|r| r.partial).collect();
    let Some(plan) = &web.plans[0] else { return format!("nothing, partial: {partial:?}") };
    let ports = plan.ports.iter().map(|port| {
        let frontends: Vec<String> = port
            .frontends
            .iter()
            .map(|f| format!("{}:{}", f.address.map_or("*".into(), |a| a.to_string()), f.port))
            .collect();
        format!(
            "{} {} {:?}/{:?} affinity {:?} ranges {} endpoints {}",
            port.name,
            frontends.join(" "),
            port.internal,
            port.external,
            port.affinity,
            port.source_ranges.len(),
            port.cluster.len()
        )
    });
    format!("{}, check {:?}", ports.collect::<Vec<_>>().join("; "), plan.health_check)
}

#[test]
fn a_value_that_cannot_be_used_is_left_out_alone() {
    let valid = valid_service("web", 1);
    let whole = programmed(&valid, service, "/spec/externalIPs", &json!([]));
    assert_eq!(
        whole,
        "http 10.96.0.1:80 203.0.113.1:80 *:30001 Cluster/Local affinity None ranges 1 endpoints 2; \
         https 10.96.0.1:443 203.0.113.1:443 Cluster/Local affinity None ranges 1 endpoints 0, check Some(31001)"
    );
    let without_load_balancer = whole.replace(" 203.0.113.1:80", "").replace(" 203.0.113.1:443", "");
    let only_http = whole.split("; ").next().unwrap().to_owned() + ", check Some(31001)";
    let only_https = whole.split("; ").nth(1).unwrap().to_owned();
    for (pointer, value, expected) in [
        // Tunnels write such an address.
        ("/status/loadBalancer/ingress/0/ip", json!("127.0.0.1"), without_load_balancer.clone()),
        ("/status/loadBalancer/ingress/0/ipMode", json!("Tunnel"), without_load_balancer.clone()),
        ("/spec/externalIPs/-", json!("example.org"), whole.clone()),
        ("/spec/clusterIP", json!("10.96.0.2"), whole.clone()),
        // Without a usable range the load-balancer IP is not programmed: an empty list would admit every client.
        (
            "/spec/loadBalancerSourceRanges/0",
            json!("192.0.2.0"),
            without_load_balancer.replace("ranges 1", "ranges 0"),
        ),
        ("/spec/loadBalancerSourceRanges/-", json!("192.0.2.0"), whole.clone()),
        ("/spec/loadBalancerSourceRanges/-", json!("fd00::/129"), whole.clone()),
        ("/spec/ports/0/port", json!(0), only_https),
        ("/spec/ports/1/protocol", json!("QUIC"), only_http),
        ("/spec/ports/0/nodePort", json!(70_000), whole.replace(" *:30001", "")),
        ("/spec/ports/-", json!({"name": "http", "port": 81}), whole.clone()),
        (
            "/spec/externalTrafficPolicy",
            json!("Nearby"),
            whole.replace("Cluster/Local", "Cluster/Cluster").replace("Some(31001)", "None"),
        ),
        ("/spec/internalTrafficPolicy", json!("local"), whole.clone()),
        ("/spec/sessionAffinity", json!("Cookie"), whole.clone()),
        ("/spec/healthCheckNodePort", json!(100_000), whole.replace("Some(31001)", "None")),
        ("/spec/clusterIPs/0", json!("10.96.0.300"), "nothing, partial: [true]".into()),
        ("/spec/clusterIPs", json!(["10.96.0.300"]), "nothing, partial: [false]".into()),
        ("/spec/clusterIPs/0", json!("010.096.0.001"), whole.clone()),
        ("/spec/clusterIPs/0", json!("::ffff:10.96.0.1"), whole.clone()),
    ] {
        assert_eq!(programmed(&valid, service, pointer, &value), expected, "{pointer} = {value}");
    }
    for (pointer, value, endpoints) in [
        ("/endpoints/1/addresses/0", json!("pod.example"), 1),
        ("/endpoints/1/addresses/0", json!("fd10::1"), 1),
        ("/endpoints/0/addresses", json!([]), 1),
        ("/ports/-", json!({"name": "x", "port": 1, "protocol": "QUIC"}), 2),
        ("/ports/-", json!({"name": "x", "port": 65_536}), 2),
        ("/addressType", json!("IP"), 0),
    ] {
        let expected = whole.replace("endpoints 2", &format!("endpoints {endpoints}"));
        assert_eq!(programmed(&valid_slice(), slice, pointer, &value), expected, "{pointer} = {value}");
    }
}

#[test]
fn a_range_of_a_service_cidr_that_cannot_be_used_is_left_out() {
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
    assert_eq!(cluster.service_cidrs(), ["10.96.0.0/16".parse().unwrap()]);
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

#[test]
fn external_ips_that_are_not_allowed_are_left_out_and_reported() {
    let mut cluster = cluster();
    cluster.set_external_ips_allowed(false);
    let mut object = valid_service("shop", 3);
    object["spec"]["externalIPs"] = json!(["198.51.100.7"]);
    cluster.apply(service(object));
    let changes = cluster.take_changes();
    let plan = changes.services[0].plans[0].as_ref().expect("a plan");
    let addresses = plan.ports.iter().flat_map(|port| &port.frontends).filter_map(|f| f.address);
    assert!(!addresses.into_iter().any(|ip| ip.to_string() == "198.51.100.7"));
    let rejected = cluster.take_rejections();
    let [one] = &*rejected else { panic!("{rejected:?}") };
    assert!(one.partial);
    assert!(one.to_string().contains("AllowServiceExternalIPs"), "{one}");
}
