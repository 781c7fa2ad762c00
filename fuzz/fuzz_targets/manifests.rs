//! A manifest, all the way to plans. The first byte chooses between JSON and YAML.
//!
//! Objects that can be read may still be nonsense; then they are rejected, and the others are planned. Plans depend on
//! what there is, not on how often it was told, and end with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_client::manifests::parse;
use portway_model::api::{Event, Kind, Object};
use portway_model::{Cluster, Identity, ServiceChange};

const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

fuzz_target!(|data: &[u8]| {
    let Some((format, text)) = data.split_first() else { return };
    let name = if format % 2 == 0 { "fuzz.yaml" } else { "fuzz.json" };
    let Ok(objects) = parse(name, text) else { return };
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
    for object in &objects {
        let Some(meta) = object.metadata() else { continue };
        let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
        cluster.apply(Event::Delete { kind: object.kind(), namespace, name });
    }
    assert_eq!(plans(cluster.take_changes().services), Vec::new(), "a plan outlives its Service");
});

fn list(cluster: &mut Cluster, objects: &[Object]) {
    for kind in KINDS {
        cluster.apply(Event::Init(kind));
    }
    for object in objects {
        cluster.apply(Event::Apply(Box::new(object.clone())));
    }
    for kind in KINDS {
        cluster.apply(Event::InitDone(kind));
    }
}

fn plans(changes: Vec<ServiceChange>) -> Vec<ServiceChange> {
    changes.into_iter().filter(|change| change.plans.iter().any(Option::is_some)).collect()
}
