//! Whether two readings of an object are the same, without keeping either.
//!
//! In: an object. Out: a number that is the same for equal objects, within one process, and never 0.

use portway_api::{ObjectMeta, Resource};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The fingerprint of an object, which is left as it was.
pub(super) fn fingerprint<R: Resource>(object: &mut R) -> u64 {
    // Maps have no order of their own, so they are taken out while the rest is encoded.
    let maps = object.metadata_mut().as_mut().map(take_maps);
    let mut hasher = DefaultHasher::new();
    R::TYPE.hash(&mut hasher);
    object.encode_to_vec().hash(&mut hasher);
    if let (Some(metadata), Some((labels, annotations))) = (object.metadata_mut().as_mut(), maps) {
        sorted(&labels).hash(&mut hasher);
        sorted(&annotations).hash(&mut hasher);
        (metadata.labels, metadata.annotations) = (labels, annotations);
    }
    hasher.finish().max(1)
}

type Map = HashMap<String, String>;

fn take_maps(metadata: &mut ObjectMeta) -> (Map, Map) {
    (std::mem::take(&mut metadata.labels), std::mem::take(&mut metadata.annotations))
}

fn sorted(map: &Map) -> Vec<(&String, &String)> {
    let mut pairs: Vec<_> = map.iter().collect();
    pairs.sort_unstable();
    pairs
}

/// The fingerprint of anything else.
pub(super) fn of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::Service;

    fn print(text: &str) -> u64 {
        let mut object: Service = serde_saphyr::from_str(text).unwrap();
        let before = object.clone();
        let fingerprint = fingerprint(&mut object);
        assert_eq!(object, before, "the object is left as it was");
        fingerprint
    }

    #[test]
    fn order_and_spelling_do_not_count_but_content_does() {
        let labels: Vec<String> = (0..20).map(|i| format!("l{i}: x")).collect();
        let service = |labels: &str| {
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a, labels: {{{labels}}}}}\n")
        };
        let forward = service(&labels.join(", "));
        let backward = service(&labels.iter().rev().cloned().collect::<Vec<_>>().join(",   "));
        assert_eq!(print(&forward), print(&backward));
        assert_ne!(print(&forward), print(&forward.replace("l7: x", "l7: y")));
        assert_ne!(print(&forward), print(&format!("{forward}spec: {{clusterIP: 10.0.0.1}}\n")));
    }
}
