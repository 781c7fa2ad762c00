//! Fingerprints of objects, to detect changes without keeping the objects.
//!
//! In: an object. Out: a number that is the same for equal objects, within one process, and never 0.

use portway_api::{ObjectMeta, Resource};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The fingerprint of an object. The object is unchanged afterwards.
pub(super) fn fingerprint<R: Resource>(object: &mut R) -> u64 {
    // The order of a HashMap is arbitrary, so maps are taken out while the rest is encoded, and hashed sorted.
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

/// The fingerprint of other values; may be 0.
pub(super) fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::Service;

    fn fingerprint_of(text: &str) -> u64 {
        let mut object: Service = serde_saphyr::from_str(text).unwrap();
        let before = object.clone();
        let fingerprint = fingerprint(&mut object);
        assert_eq!(object, before, "the object is unchanged");
        fingerprint
    }

    #[test]
    fn the_fingerprint_depends_on_content_but_not_on_order_and_white_space() {
        let labels: Vec<String> = (0..20).map(|i| format!("l{i}: x")).collect();
        let service = |labels: &str| {
            format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a, labels: {{{labels}}}}}\n")
        };
        let forward = service(&labels.join(", "));
        let backward = service(&labels.iter().rev().cloned().collect::<Vec<_>>().join(",   "));
        assert_eq!(fingerprint_of(&forward), fingerprint_of(&backward));
        assert_ne!(fingerprint_of(&forward), fingerprint_of(&forward.replace("l7: x", "l7: y")));
        assert_ne!(
            fingerprint_of(&forward),
            fingerprint_of(&format!("{forward}spec: {{clusterIP: 10.0.0.1}}\n"))
        );
    }
}
