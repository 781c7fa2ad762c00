//! Fingerprints: 64 bits in place of a label, or of an endpoint as it is in a slice.
//!
//! A Pod's labels are only ever compared with selectors, and an endpoint of a slice only with the wanted one, so their
//! fingerprints do. They have a random key in each process, so that no object can be made to have another's.

use portway_api::address::parse_ip;
use portway_api::complete::Endpoint;
use portway_api::{EndpointConditions, EndpointHints};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The fingerprint of a value.
pub(crate) fn of(value: impl Hash) -> u64 {
    KEY.hash_one(value)
}

/// The fingerprints of labels in a namespace, sorted.
pub(crate) fn labels<'a>(
    namespace: &str,
    labels: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Box<[u64]> {
    let mut found: Box<[u64]> =
        labels.into_iter().map(|(key, value)| of((namespace, key.as_str(), value.as_str()))).collect();
    found.sort_unstable();
    found
}

/// Whether labels have everything that a selector wants. Both are sorted.
pub(crate) fn selects(selector: &[u64], labels: &[u64]) -> bool {
    selector.iter().all(|wanted| labels.binary_search(wanted).is_ok())
}

/// An endpoint of a slice, reduced to what it is compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointPrint {
    /// Addresses, host name and Pod: which endpoint it is.
    pub identity: u64,
    /// Everything but hints.
    pub content: u64,
    /// Hints; 0 without any.
    pub hints: u64,
}

/// The fields of an endpoint that the controllers write, without hints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointFields<'a> {
    pub(crate) address: IpAddr,
    pub(crate) hostname: Option<&'a str>,
    /// Namespace, name and unique id of the Pod.
    pub(crate) pod: Option<(&'a str, &'a str, &'a str)>,
    pub(crate) node: Option<&'a str>,
    pub(crate) zone: Option<&'a str>,
    pub(crate) conditions: EndpointConditions,
}

impl EndpointFields<'_> {
    pub(crate) fn print(&self, hints: u64) -> EndpointPrint {
        let pod = self.pod.map(|(namespace, name, _)| (namespace, name));
        let identity = of((self.address, self.hostname, pod));
        let uid = self.pod.map(|(_, _, uid)| uid);
        let EndpointConditions { ready, serving, terminating } = self.conditions;
        EndpointPrint {
            identity,
            content: of((identity, uid, self.node, self.zone, ready, serving, terminating)),
            hints,
        }
    }
}

/// The fingerprint of hints for these zones and nodes.
pub(crate) fn hints<'a>(
    zones: impl IntoIterator<Item = &'a str>,
    nodes: impl IntoIterator<Item = &'a str>,
) -> u64 {
    let (mut hasher, mut any) = (KEY.build_hasher(), false);
    for (kind, name) in zones.into_iter().map(|z| (0_u8, z)).chain(nodes.into_iter().map(|n| (1, n))) {
        (kind, name).hash(&mut hasher);
        any = true;
    }
    if any { hasher.finish().max(1) } else { 0 }
}

/// The fingerprint of an endpoint in a slice. One with fields that the controllers do not write has another content
/// than any wanted one.
pub(crate) fn endpoint(endpoint: &Endpoint) -> EndpointPrint {
    let named = |list: &'_ [portway_api::Named]| list.iter().map(|n| n.name.clone()).collect::<Vec<_>>();
    let (zones, nodes) = match &endpoint.hints {
        Some(EndpointHints { for_zones, for_nodes }) => (named(for_zones), named(for_nodes)),
        None => Default::default(),
    };
    let hints = hints(zones.iter().map(String::as_str), nodes.iter().map(String::as_str));
    let text = endpoint.addresses.first().map_or("", String::as_str);
    let address = parse_ip(text).filter(|_| endpoint.addresses.len() == 1);
    let target = endpoint.target_ref.as_ref();
    let Some(address) = address else {
        let identity = of((&endpoint.addresses, target.map(|t| (&t.namespace, &t.name))));
        return EndpointPrint { identity, content: identity, hints };
    };
    let fields = EndpointFields {
        address,
        hostname: endpoint.hostname.as_deref(),
        pod: target.map(|t| (t.namespace.as_str(), t.name.as_str(), t.uid.as_str())),
        node: endpoint.node_name.as_deref(),
        zone: endpoint.zone.as_deref(),
        conditions: endpoint.conditions.unwrap_or_default(),
    };
    let mut print = fields.print(hints);
    let unusual_target =
        target.is_some_and(|t| t.kind != "Pod" || !t.field_path.is_empty() || !t.api_version.is_empty());
    if unusual_target || !endpoint.deprecated_topology.is_empty() || address.to_string() != text {
        print.content = !print.content;
    }
    print
}

/// The fingerprint of an endpoint in a mirrored slice, which may refer to any object. The version of that object does
/// not count.
pub(crate) fn mirrored(endpoint: &Endpoint) -> EndpointPrint {
    let mut endpoint = endpoint.clone();
    if let Some(target) = &mut endpoint.target_ref {
        target.resource_version.clear();
    }
    let target = endpoint.target_ref.as_ref().map(|t| (&t.namespace, &t.name));
    let identity = of((&endpoint.addresses, &endpoint.hostname, target));
    EndpointPrint { identity, content: of(prost::Message::encode_to_vec(&endpoint)), hints: 0 }
}
