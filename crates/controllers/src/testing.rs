//! Builders of objects, and a cluster whose writes are applied as an API server would.

use crate::cluster::{Cluster, ClusterEvent, Touched};
use crate::endpointslice::{self, Context};
use crate::key::Key;
use crate::plan::{Object, Plan, Write};
use crate::{endpoints, mirroring};
use portway_api::complete::EndpointSlice;
use portway_api::{
    Condition, Container, ContainerPort, EndpointAddress, EndpointSubset, Endpoints, Event, Node, NodeStatus,
    ObjectMeta, Pod, PodIp, PodSpec, PodStatus, Quantity, Resource, Service, ServicePort, ServiceSpec,
    SubsetPort, Time,
};
use std::collections::{BTreeMap, HashMap};

pub(crate) const NAMESPACE: &str = "shop";

pub(crate) fn key(name: &str) -> Key {
    Key::new(NAMESPACE, name)
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: name.to_owned(),
        namespace: NAMESPACE.to_owned(),
        uid: format!("uid-of-{name}"),
        creation_timestamp: Some(Time { seconds: 1000 }),
        ..ObjectMeta::default()
    }
}

/// A Service with port 80, named http, at target port 8080, that selects Pods with `app` of its own name.
pub(crate) fn service(name: &str) -> Service {
    Service {
        metadata: Some(meta(name)),
        spec: Some(ServiceSpec {
            selector: map(&[("app", name)]),
            cluster_ip: "10.96.0.1".to_owned(),
            kind: "ClusterIP".to_owned(),
            ip_families: vec!["IPv4".to_owned()],
            ports: vec![port("http", 80, 8080.into())],
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

pub(crate) fn port(name: &str, port: i32, target: portway_api::IntOrString) -> ServicePort {
    ServicePort {
        name: name.to_owned(),
        protocol: "TCP".to_owned(),
        port,
        target_port: Some(target),
        ..ServicePort::default()
    }
}

/// A Service with another specification.
pub(crate) fn service_with(name: &str, change: impl FnOnce(&mut ServiceSpec)) -> Service {
    let mut service = service(name);
    change(service.spec.get_or_insert_default());
    service
}

/// A Pod that is ready, with `app`, an IPv4 and an IPv6 address from its number, on `node`.
pub(crate) fn pod(app: &str, number: u16, node: &str) -> Pod {
    let mut metadata = meta(&format!("{app}-{number:05}"));
    metadata.labels = map(&[("app", app), ("tier", "web")]);
    let [high, low] = number.to_be_bytes();
    Pod {
        metadata: Some(metadata),
        spec: Some(PodSpec {
            node_name: node.to_owned(),
            containers: vec![container(&[("http", 8080), ("admin", 9090)])],
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: "Running".to_owned(),
            conditions: vec![ready(true, 2000)],
            pod_ip: format!("10.244.{high}.{low}"),
            pod_ips: vec![
                PodIp { ip: format!("10.244.{high}.{low}") },
                PodIp { ip: format!("fd00::{number:x}") },
            ],
            ..PodStatus::default()
        }),
    }
}

pub(crate) fn container(ports: &[(&str, i32)]) -> Container {
    let port = |(name, port): &(&str, i32)| ContainerPort {
        name: (*name).to_owned(),
        container_port: *port,
        protocol: "TCP".to_owned(),
    };
    Container { ports: ports.iter().map(port).collect(), ..Container::default() }
}

pub(crate) fn ready(ready: bool, since: i64) -> Condition {
    Condition {
        kind: "Ready".to_owned(),
        status: if ready { "True" } else { "False" }.to_owned(),
        last_transition_time: Some(Time { seconds: since }),
        ..Condition::default()
    }
}

/// A Pod with a change.
pub(crate) fn pod_with(app: &str, number: u16, change: impl FnOnce(&mut Pod)) -> Pod {
    let mut pod = pod(app, number, "node-a");
    change(&mut pod);
    pod
}

/// A Service whose two ports, http and admin, are at the ports of these names of each Pod.
pub(crate) fn service_with_named_ports(name: &str) -> Service {
    service_with(name, |spec| {
        spec.ports = vec![port("http", 80, "http".into()), port("admin", 81, "admin".into())];
    })
}

/// A Pod of the Service `web` with these named ports.
pub(crate) fn pod_with_ports(number: u16, ports: &[(&str, i32)]) -> Pod {
    pod_with("web", number, |pod| pod.spec.get_or_insert_default().containers = vec![container(ports)])
}

/// A Node that is ready, with processors, in a zone if that is not empty.
pub(crate) fn node(name: &str, zone: &str) -> Node {
    let labels = if zone.is_empty() { HashMap::new() } else { map(&[("topology.kubernetes.io/zone", zone)]) };
    Node {
        metadata: Some(ObjectMeta { namespace: String::new(), labels, ..meta(name) }),
        spec: None,
        status: Some(NodeStatus {
            allocatable: [("cpu".to_owned(), Quantity { text: "4".to_owned() })].into(),
            conditions: vec![ready(true, 0)],
            addresses: Vec::new(),
        }),
    }
}

/// An Endpoints object that a person wrote.
pub(crate) fn endpoints_object(name: &str, ready: &[&str], unready: &[&str]) -> Endpoints {
    let addresses = |ips: &[&str]| {
        let address = |ip: &&str| EndpointAddress { ip: (*ip).to_owned(), ..EndpointAddress::default() };
        ips.iter().map(address).collect()
    };
    Endpoints {
        metadata: Some(meta(name)),
        subsets: vec![EndpointSubset {
            addresses: addresses(ready),
            not_ready_addresses: addresses(unready),
            ports: vec![SubsetPort {
                name: "http".to_owned(),
                port: 8080,
                protocol: "TCP".to_owned(),
                app_protocol: None,
            }],
        }],
    }
}

/// A cluster, and the API server's copy of the objects that controllers write.
#[derive(Debug, Default)]
pub(crate) struct TestApi {
    pub(crate) cluster: Cluster,
    pub(crate) slices: BTreeMap<Key, EndpointSlice>,
    pub(crate) endpoints: BTreeMap<Key, Endpoints>,
    revision: u64,
}

/// Why the simulated API server refuses a write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

impl TestApi {
    /// A cluster whose lists are complete, with two nodes in two zones.
    pub(crate) fn new() -> TestApi {
        let mut api = TestApi::default();
        for event in [
            ClusterEvent::Service(Event::Init),
            ClusterEvent::Pod(Event::Init),
            ClusterEvent::Node(Event::Init),
            ClusterEvent::Slice(Event::Init),
            ClusterEvent::Endpoints(Event::Init),
            ClusterEvent::Service(Event::InitDone),
            ClusterEvent::Pod(Event::InitDone),
            ClusterEvent::Node(Event::InitDone),
            ClusterEvent::Slice(Event::InitDone),
            ClusterEvent::Endpoints(Event::InitDone),
        ] {
            api.event(event);
        }
        api.with(node("node-a", "zone-a")).with(node("node-b", "zone-b"))
    }

    /// The newest version.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Versions go on after this one.
    pub(crate) fn advance_to(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    pub(crate) fn event(&mut self, event: impl Into<ClusterEvent>) -> Vec<Touched> {
        let mut touched = Vec::new();
        self.cluster.apply(event.into(), &mut touched);
        touched
    }

    pub(crate) fn apply<R: Resource>(&mut self, mut object: R) -> Vec<Touched>
    where
        ClusterEvent: From<Event<R>>,
    {
        self.revision += 1;
        if let Some(meta) = object.metadata_mut() {
            meta.resource_version = self.revision.to_string();
        }
        self.event(Event::Apply(object))
    }

    pub(crate) fn with<R: Resource>(mut self, object: R) -> TestApi
    where
        ClusterEvent: From<Event<R>>,
    {
        self.apply(object);
        self
    }

    pub(crate) fn delete<R: Resource>(&mut self, name: &str) -> Vec<Touched>
    where
        ClusterEvent: From<Event<R>>,
    {
        self.event(Event::<R>::Delete { namespace: NAMESPACE.to_owned(), name: name.to_owned() })
    }

    /// What the EndpointSlice controller would write.
    pub(crate) fn plan(&self, name: &str) -> Plan {
        endpointslice::reconcile(
            &self.cluster,
            &key(name),
            Context { max_endpoints: 100, max_mirrored: 1000, trigger: None },
        )
    }

    /// Lets the EndpointSlice controller write, until it has nothing to write. Returns the plans with writes.
    pub(crate) fn write_all(&mut self, name: &str) -> Vec<Plan> {
        self.write_until_done_with(
            |cluster, key| {
                endpointslice::reconcile(
                    cluster,
                    key,
                    Context { max_endpoints: 100, max_mirrored: 1000, trigger: None },
                )
            },
            name,
        )
    }

    /// The same for the Endpoints controller.
    pub(crate) fn write_endpoints(&mut self, name: &str) -> Vec<Plan> {
        self.write_until_done_with(|cluster, key| endpoints::reconcile(cluster, key, None, false), name)
    }

    /// The same for the mirroring controller.
    pub(crate) fn write_mirrored(&mut self, name: &str) -> Vec<Plan> {
        self.write_until_done_with(|cluster, key| mirroring::reconcile(cluster, key, 1000), name)
    }

    pub(crate) fn write_until_done_with(
        &mut self,
        reconcile: impl Fn(&Cluster, &Key) -> Plan,
        name: &str,
    ) -> Vec<Plan> {
        let mut plans = Vec::new();
        loop {
            let plan = reconcile(&self.cluster, &key(name));
            if plan.writes.is_empty() {
                return plans;
            }
            for reasoned in &plan.writes {
                self.write(&reasoned.write).expect("no conflict");
            }
            plans.push(plan);
            assert!(plans.len() < 3, "no fixed point: {plans:#?}");
        }
    }

    /// Stores a write as the API server does, and its answer in the cluster.
    pub(crate) fn write(&mut self, write: &Write) -> Result<(), Conflict> {
        match write {
            Write::Create(Object::Slice(slice)) => {
                let stored = create(&mut self.slices, &mut self.revision, &**slice)?;
                self.cluster.slice_written(stored, &mut Vec::new());
            }
            Write::Replace(Object::Slice(slice)) => {
                let stored = replace(&mut self.slices, &mut self.revision, &**slice)?;
                self.cluster.slice_written(stored, &mut Vec::new());
            }
            Write::Create(Object::Endpoints(object)) => {
                let stored = create(&mut self.endpoints, &mut self.revision, &**object)?;
                self.cluster.endpoints_written(stored, &mut Vec::new());
            }
            Write::Replace(Object::Endpoints(object)) => {
                let stored = replace(&mut self.endpoints, &mut self.revision, &**object)?;
                self.cluster.endpoints_written(stored, &mut Vec::new());
            }
            Write::Delete { resource, version, .. } if *resource == EndpointSlice::TYPE => {
                remove(&mut self.slices, &version.key, &version.resource_version)?;
                self.cluster.slice_deleted(&version.key);
            }
            Write::Delete { version, .. } => {
                remove(&mut self.endpoints, &version.key, &version.resource_version)?;
                self.cluster.endpoints_missing(&version.key);
            }
            other => panic!("not a write of an endpoint controller: {other}"),
        }
        Ok(())
    }

    /// Another process changes a slice. Returns the Services that it touches.
    pub(crate) fn tamper(&mut self, slice: &Key, change: impl FnOnce(&mut EndpointSlice)) -> Vec<Touched> {
        let mut changed = self.slices[slice].clone();
        change(&mut changed);
        self.revision += 1;
        changed.metadata.get_or_insert_default().resource_version = self.revision.to_string();
        self.slices.insert(slice.clone(), changed.clone());
        self.event(Event::Apply(changed))
    }

    /// The addresses in the slices of a Service, with `ready`, sorted.
    pub(crate) fn addresses(&self, service: &str) -> Vec<(String, bool)> {
        let of_service =
            self.slices.values().filter(|slice| label(slice, "kubernetes.io/service-name") == service);
        let mut found: Vec<(String, bool)> = of_service
            .flat_map(|slice| &slice.endpoints)
            .map(|e| (e.addresses[0].clone(), e.conditions.is_some_and(|c| c.ready == Some(true))))
            .collect();
        found.sort();
        found
    }

    /// The only slice.
    pub(crate) fn only_slice(&self) -> &EndpointSlice {
        assert_eq!(self.slices.len(), 1, "{:#?}", self.slices);
        self.slices.values().next().expect("a slice")
    }

    /// The only Endpoints object.
    pub(crate) fn only_endpoints(&self) -> &Endpoints {
        assert_eq!(self.endpoints.len(), 1, "{:#?}", self.endpoints);
        self.endpoints.values().next().expect("an Endpoints object")
    }
}

pub(crate) fn label(slice: &EndpointSlice, name: &str) -> String {
    slice.metadata.as_ref().and_then(|meta| meta.labels.get(name)).cloned().unwrap_or_default()
}

fn create<R: Resource>(stored: &mut BTreeMap<Key, R>, revision: &mut u64, object: &R) -> Result<R, Conflict> {
    let (key, mut object) = (Key::of(object), object.clone());
    assert!(!key.name().is_empty(), "an object without a name");
    if stored.contains_key(&key) {
        return Err(Conflict);
    }
    *revision += 1;
    let meta = object.metadata_mut().get_or_insert_default();
    meta.uid = format!("uid-{revision}");
    meta.resource_version = revision.to_string();
    stored.insert(key, object.clone());
    Ok(object)
}

fn replace<R: Resource>(
    stored: &mut BTreeMap<Key, R>,
    revision: &mut u64,
    object: &R,
) -> Result<R, Conflict> {
    let (key, mut object) = (Key::of(object), object.clone());
    let version = |object: &R| object.metadata().map(|meta| meta.resource_version.clone());
    if stored.get(&key).map(version) != Some(version(&object)) {
        return Err(Conflict);
    }
    *revision += 1;
    object.metadata_mut().get_or_insert_default().resource_version = revision.to_string();
    stored.insert(key, object.clone());
    Ok(object)
}

fn remove<R: Resource>(stored: &mut BTreeMap<Key, R>, key: &Key, version: &str) -> Result<(), Conflict> {
    match stored.get(key).and_then(|object| object.metadata()) {
        Some(meta) if meta.resource_version != version => Err(Conflict),
        _ => {
            stored.remove(key);
            Ok(())
        }
    }
}
