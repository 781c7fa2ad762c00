//! A manifest, all the way to plans. The first byte chooses between JSON and YAML.
//!
//! Objects that can be read may still be nonsense; then they are rejected, and the others are planned. Plans depend on
//! what there is, not on how often it was told, and end with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_client::manifests::parse;
use portway_model::api::{EndpointSlice, Event, Node, Resource, Service, ServiceCidr};
use portway_model::{Cluster, ClusterEvent, Identity, ServiceChange};

type Set = (Service, EndpointSlice, Node, ServiceCidr);

fuzz_target!(|data: &[u8]| {
    let Some((format, text)) = data.split_first() else { return };
    let name = if format % 2 == 0 { "fuzz.yaml" } else { "fuzz.json" };
    let (objects, _) = parse::<Set, ClusterEvent>(name, text);
    let mut cluster = Cluster::new(Identity { node: "node1".into(), proxy_name: None });
    list(&mut cluster, &objects);
    let first = plans(cluster.take_changes().services);
    assert!(!cluster.has_changes(), "changes that were taken are still there");
    // The same list once more, as after an outage, changes nothing.
    list(&mut cluster, &objects);
    assert_eq!(plans(cluster.take_changes().services), Vec::new(), "the same list again is a change");
    cluster.touch_all();
    assert_eq!(plans(cluster.take_changes().services), first, "planned again, it is another plan");
    // Everything goes, and with it every plan.
    for object in objects {
        match object {
            ClusterEvent::Service(event) => cluster.apply(deletion(event)),
            ClusterEvent::EndpointSlice(event) => cluster.apply(deletion(event)),
            ClusterEvent::Node(event) => cluster.apply(deletion(event)),
            ClusterEvent::ServiceCidr(event) => cluster.apply(deletion(event)),
        }
    }
    assert_eq!(plans(cluster.take_changes().services), Vec::new(), "a plan outlives its Service");
});

fn deletion<R: Resource>(event: Event<R>) -> Event<R> {
    let Event::Apply(object) = event else { return event };
    let meta = object.metadata().cloned().unwrap_or_default();
    Event::Delete { namespace: meta.namespace, name: meta.name }
}

fn list(cluster: &mut Cluster, objects: &[ClusterEvent]) {
    cluster.apply(Event::<Service>::Init);
    cluster.apply(Event::<EndpointSlice>::Init);
    cluster.apply(Event::<Node>::Init);
    cluster.apply(Event::<ServiceCidr>::Init);
    for object in objects {
        cluster.apply(object.clone());
    }
    cluster.apply(Event::<Service>::InitDone);
    cluster.apply(Event::<EndpointSlice>::InitDone);
    cluster.apply(Event::<Node>::InitDone);
    cluster.apply(Event::<ServiceCidr>::InitDone);
}

fn plans(changes: Vec<ServiceChange>) -> Vec<ServiceChange> {
    changes.into_iter().filter(|change| change.plans.iter().any(Option::is_some)).collect()
}
