//! Objects survive encoding and decoding in both wire formats.

use super::*;
use proptest::prelude::*;
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::json;

fn assert_round_trip<T>(object: &T) -> Result<(), TestCaseError>
where
    T: Message + Default + PartialEq + std::fmt::Debug + Serialize + for<'de> Deserialize<'de>,
{
    let from_protobuf = T::decode(&*object.encode_to_vec()).unwrap();
    let from_json: T = serde_json::from_str(&serde_json::to_string(object).unwrap()).unwrap();
    prop_assert_eq!(&from_protobuf, object);
    prop_assert_eq!(&from_json, object);
    Ok(())
}

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9./:-]{0,12}"
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(), 0..3)
}

fn metadata() -> impl Strategy<Value = Option<ObjectMeta>> {
    let time = || prop::option::of((0..4_000_000_000i64).prop_map(|seconds| Time { seconds }));
    let labels = || prop::collection::hash_map(text(), text(), 0..3);
    let meta = (text(), text(), text(), any::<i64>(), time(), time(), labels(), labels()).prop_map(
        |(name, namespace, uid, generation, creation_timestamp, deletion_timestamp, labels, annotations)| {
            ObjectMeta {
                generation,
                resource_version: uid.clone(),
                generate_name: name.clone(),
                finalizers: vec![uid.clone()],
                owner_references: vec![OwnerReference {
                    uid: uid.clone(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }],
                name,
                namespace,
                uid,
                creation_timestamp,
                deletion_timestamp,
                labels,
                annotations,
            }
        },
    );
    prop::option::of(meta)
}

fn service() -> impl Strategy<Value = Service> {
    let target =
        prop_oneof![any::<i32>().prop_map(IntOrString::from), text().prop_map(|t| t.as_str().into())];
    let port =
        (text(), text(), any::<i32>(), any::<i32>(), prop::option::of(target), prop::option::of(text()))
            .prop_map(|(name, protocol, port, node_port, target_port, app_protocol)| ServicePort {
                name,
                protocol,
                port,
                target_port,
                node_port,
                app_protocol,
            });
    let spec = (
        (prop::collection::vec(port, 0..3), text(), text(), texts(), text(), texts()),
        (prop::collection::hash_map(text(), text(), 0..3), any::<bool>(), prop::option::of(text())),
        (text(), any::<i32>(), prop::option::of(any::<i32>()), texts(), texts(), prop::option::of(text())),
    )
        .prop_map(|((ports, cluster_ip, kind, external_ips, affinity, ranges), selection, rest)| {
            ServiceSpec {
                selector: selection.0,
                publish_not_ready_addresses: selection.1,
                traffic_distribution: selection.2,
                ports,
                cluster_ip,
                kind,
                external_ips,
                session_affinity: affinity,
                load_balancer_source_ranges: ranges,
                external_traffic_policy: rest.0,
                health_check_node_port: rest.1,
                session_affinity_config: rest.2.map(|seconds| SessionAffinityConfig {
                    client_ip: Some(ClientIpConfig { timeout_seconds: Some(seconds) }),
                }),
                cluster_ips: rest.3,
                ip_families: rest.4,
                internal_traffic_policy: rest.5,
            }
        });
    let ingress =
        (text(), prop::option::of(text())).prop_map(|(ip, ip_mode)| LoadBalancerIngress { ip, ip_mode });
    let status = prop::collection::vec(ingress, 0..3)
        .prop_map(|ingress| ServiceStatus { load_balancer: Some(LoadBalancerStatus { ingress }) });
    (metadata(), prop::option::of(spec), prop::option::of(status))
        .prop_map(|(metadata, spec, status)| Service { metadata, spec, status })
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let flag = || prop::option::of(any::<bool>());
    let names = || prop::collection::vec(text().prop_map(|name| Named { name }), 0..3);
    let conditions = (flag(), flag(), flag()).prop_map(|(ready, serving, terminating)| EndpointConditions {
        ready,
        serving,
        terminating,
    });
    let hints = (names(), names()).prop_map(|(for_zones, for_nodes)| EndpointHints { for_zones, for_nodes });
    let endpoint =
        (texts(), prop::option::of(conditions), prop::option::of(text()), prop::option::of(hints)).prop_map(
            |(addresses, conditions, node_name, hints)| Endpoint { addresses, conditions, node_name, hints },
        );
    let port = (prop::option::of(text()), prop::option::of(text()), prop::option::of(any::<i32>()))
        .prop_map(|(name, protocol, port)| EndpointPort { name, protocol, port });
    (metadata(), prop::collection::vec(endpoint, 0..3), prop::collection::vec(port, 0..3), text()).prop_map(
        |(metadata, endpoints, ports, address_type)| EndpointSlice {
            metadata,
            endpoints,
            ports,
            address_type,
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    let added = prop::option::of((0..4_000_000_000i64).prop_map(|seconds| Time { seconds }));
    let taint = (text(), text(), text(), added).prop_map(|(key, value, effect, time_added)| Taint {
        key,
        value,
        effect,
        time_added,
    });
    let taints = prop::collection::vec(taint, 0..3);
    let spec = (text(), taints, texts()).prop_map(|(pod_cidr, taints, pod_cidrs)| NodeSpec {
        pod_cidr,
        taints,
        pod_cidrs,
    });
    let address = (text(), text()).prop_map(|(kind, address)| NodeAddress { kind, address });
    let cpu = text().prop_map(|text| [("cpu".to_owned(), Quantity { text })].into());
    let status = (prop::collection::vec(address, 0..3), cpu, conditions())
        .prop_map(|(addresses, allocatable, conditions)| NodeStatus { allocatable, conditions, addresses });
    (metadata(), prop::option::of(spec), prop::option::of(status)).prop_map(|(metadata, spec, status)| Node {
        metadata,
        spec,
        status,
    })
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    let condition =
        (text(), text(), text(), 0..4_000_000_000i64).prop_map(|(kind, status, reason, seconds)| Condition {
            kind,
            status,
            reason,
            last_heartbeat_time: Some(Time { seconds: seconds / 2 }),
            last_transition_time: Some(Time { seconds }),
        });
    prop::collection::vec(condition, 0..3)
}

fn pod() -> impl Strategy<Value = Pod> {
    let port = (text(), any::<i32>(), text()).prop_map(|(name, container_port, protocol)| ContainerPort {
        name,
        container_port,
        protocol,
    });
    let container = (text(), prop::collection::vec(port, 0..3), prop::option::of(text()))
        .prop_map(|(name, ports, restart_policy)| Container { name, ports, restart_policy });
    let containers = prop::collection::vec(container, 0..3).boxed();
    let spec = (containers.clone(), text(), text(), text(), containers).prop_map(
        |(containers, node_name, hostname, subdomain, init_containers)| PodSpec {
            containers,
            node_name,
            hostname,
            subdomain,
            init_containers,
        },
    );
    let restarts =
        prop::collection::vec(any::<i32>().prop_map(|restart_count| ContainerStatus { restart_count }), 0..3);
    let status = (text(), conditions(), text(), texts(), restarts).prop_map(
        |(phase, conditions, pod_ip, ips, container_statuses)| PodStatus {
            phase,
            conditions,
            pod_ip,
            pod_ips: ips.into_iter().map(|ip| PodIp { ip }).collect(),
            container_statuses,
        },
    );
    (metadata(), prop::option::of(spec), prop::option::of(status)).prop_map(|(metadata, spec, status)| Pod {
        metadata,
        spec,
        status,
    })
}

fn target() -> impl Strategy<Value = Option<ObjectReference>> {
    prop::option::of((text(), text()).prop_map(|(name, uid)| ObjectReference {
        kind: "Pod".to_owned(),
        name,
        uid,
        ..ObjectReference::default()
    }))
}

fn endpoints() -> impl Strategy<Value = Endpoints> {
    let address = (text(), target(), text(), prop::option::of(text())).prop_map(
        |(ip, target_ref, hostname, node_name)| EndpointAddress { ip, target_ref, hostname, node_name },
    );
    let addresses = prop::collection::vec(address, 0..3).boxed();
    let port = (text(), any::<i32>(), text(), prop::option::of(text()))
        .prop_map(|(name, port, protocol, app_protocol)| SubsetPort { name, port, protocol, app_protocol });
    let subset = (addresses.clone(), addresses, prop::collection::vec(port, 0..3)).prop_map(
        |(addresses, not_ready_addresses, ports)| EndpointSubset { addresses, not_ready_addresses, ports },
    );
    (metadata(), prop::collection::vec(subset, 0..3))
        .prop_map(|(metadata, subsets)| Endpoints { metadata, subsets })
}

/// A slice with every field. It has those of the smaller type, under the same tags and names.
fn complete_slice() -> impl Strategy<Value = complete::EndpointSlice> {
    let some = || prop::option::of(text());
    let more = (some(), target(), some(), some());
    (slice(), more).prop_map(|(slice, (hostname, target_ref, zone, app_protocol))| complete::EndpointSlice {
        metadata: slice.metadata,
        endpoints: slice
            .endpoints
            .into_iter()
            .map(|endpoint| complete::Endpoint {
                addresses: endpoint.addresses,
                conditions: endpoint.conditions,
                hostname: hostname.clone(),
                target_ref: target_ref.clone(),
                node_name: endpoint.node_name,
                zone: zone.clone(),
                hints: endpoint.hints,
                ..complete::Endpoint::default()
            })
            .collect(),
        ports: slice
            .ports
            .into_iter()
            .map(|port| complete::EndpointPort {
                name: port.name,
                protocol: port.protocol,
                port: port.port,
                app_protocol: app_protocol.clone(),
            })
            .collect(),
        address_type: slice.address_type,
    })
}

proptest! {
    #[test]
    fn pods(object in pod()) {
        assert_round_trip(&object)?;
    }

    #[test]
    fn endpoints_objects(object in endpoints()) {
        assert_round_trip(&object)?;
    }

    #[test]
    fn complete_slices(object in complete_slice()) {
        assert_round_trip(&object)?;
        let smaller = EndpointSlice::decode(&*object.encode_to_vec()).unwrap();
        let from_json: EndpointSlice = serde_json::from_value(serde_json::to_value(&object).unwrap()).unwrap();
        prop_assert_eq!(&smaller, &from_json);
        prop_assert_eq!(smaller.endpoints.len(), object.endpoints.len());
    }

    #[test]
    fn services(object in service()) {
        assert_round_trip(&object)?;
    }

    #[test]
    fn slices(object in slice()) {
        assert_round_trip(&object)?;
    }

    #[test]
    fn nodes(object in node()) {
        assert_round_trip(&object)?;
    }

    #[test]
    fn service_cidrs(metadata in metadata(), cidrs in texts()) {
        assert_round_trip(&ServiceCidr { metadata, spec: Some(ServiceCidrSpec { cidrs }) })?;
    }

    #[test]
    fn leases(metadata in metadata(), holder in prop::option::of(text()), seconds in 0..4_000_000_000i64, micros in 0..1_000_000) {
        let time = Some(MicroTime { seconds, nanos: micros * 1000 });
        let spec = LeaseSpec {
            holder_identity: holder,
            lease_duration_seconds: Some(15),
            acquire_time: time,
            renew_time: time,
            lease_transitions: Some(micros),
            ..LeaseSpec::default()
        };
        assert_round_trip(&Lease { metadata, spec: Some(spec) })?;
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Service::decode(&*bytes);
        let _ = EndpointSlice::decode(&*bytes);
        let _ = serde_json::from_slice::<Service>(&bytes);
    }
}

/// Hand-written bytes as an API server sends them: the tags of upstream's `generated.proto`, with fields that Portway
/// does not read.
#[test]
fn field_tags_match_upstream() {
    let field = |number: u8, content: &[u8]| [&[number << 3 | 2, content.len() as u8], content].concat();
    let two_byte_tag = |number: u16, content: &[u8]| {
        let tag = number << 3 | 2;
        [&[(tag & 0x7f) as u8 | 0x80, (tag >> 7) as u8, content.len() as u8], content].concat()
    };
    let target = field(4, &[vec![1 << 3, 1], field(3, b"web")].concat());
    let port =
        [field(1, b"http"), field(2, b"TCP"), vec![3 << 3, 80], target, vec![5 << 3, 0xb1, 0xea, 1]].concat();
    let selector = field(2, &[field(1, b"app"), field(2, b"web")].concat());
    let spec = [
        field(1, &port),
        selector,
        field(3, b"10.96.0.1"),
        field(4, b"NodePort"),
        field(7, b"ClientIP"),
        field(11, b"Local"),
        two_byte_tag(18, b"10.96.0.1"),
        two_byte_tag(22, b"Cluster"),
    ]
    .concat();
    let metadata = [field(1, b"web"), field(3, b"default"), field(8, &[1 << 3, 100])].concat();
    let bytes = [field(1, &metadata), field(2, &spec)].concat();
    let from_json: Service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default", "creationTimestamp": "1970-01-01T00:01:40Z"},
        "spec": {
            "type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 30001}],
            "selector": {"app": "web"}, "sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "externalIPs": null,
        },
    }))
    .unwrap();
    assert_eq!(Service::decode(&*bytes).unwrap(), from_json);
}
