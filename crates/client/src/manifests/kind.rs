//! Decides by `apiVersion` and `kind` how an object is read.
//!
//! In: the two fields, and the members of the set. Out: the class of the object, or why the fields cannot be right.

use super::set::Member;
use serde::Deserialize;

/// Longer kinds are not compared with the known ones: they are no misspellings.
const MAX_MISSPELLED: usize = 64;

/// `apiVersion` and `kind`, which determine the type of the rest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TypeMeta {
    pub(super) api_version: String,
    pub(super) kind: String,
}

/// How an object is read, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectClass {
    /// An object of the member with this index.
    Member(usize),
    /// A list of objects.
    List,
    /// An object of another resource, which is skipped.
    Other,
}

/// An `apiVersion` or `kind` that cannot be right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WrongType {
    /// Index of the member that was probably meant.
    pub(super) member: Option<usize>,
    pub(super) field: &'static str,
    pub(super) reason: String,
}

impl TypeMeta {
    /// The type of the items of this list, if they do not say it themselves: those of a ServiceList are Services.
    pub(super) fn of_items(&self) -> TypeMeta {
        let kind = self.kind.strip_suffix("List").unwrap_or_default().to_owned();
        TypeMeta { kind, api_version: self.api_version.clone() }
    }

    pub(super) fn classify<E>(&self, members: &[Member<E>]) -> Result<ObjectClass, WrongType> {
        let TypeMeta { api_version, kind } = self;
        if kind.is_empty() {
            let reason = "it has no kind; is it a Kubernetes object?".into();
            return Err(WrongType { member: None, field: "", reason });
        }
        let of_kind = |kind: &str| members.iter().position(|member| member.resource.kind() == kind);
        let core = ["v1".to_owned()];
        let (known, member, versions) = match (of_kind(kind), kind.strip_suffix("List")) {
            (Some(index), _) => (ObjectClass::Member(index), Some(index), &members[index].versions[..]),
            (None, Some("")) => (ObjectClass::List, None, &core[..]),
            (None, Some(item)) => match of_kind(item) {
                Some(index) => (ObjectClass::List, None, &members[index].versions[..]),
                None => return self.check_spelling(members),
            },
            (None, None) => return self.check_spelling(members),
        };
        if versions.contains(api_version) {
            return Ok(known);
        }
        // Other groups may have kinds of the same name, such as Knative's Service.
        if !api_version.is_empty() && versions.iter().all(|version| group(version) != group(api_version)) {
            return Ok(ObjectClass::Other);
        }
        let reason = format!("{api_version:?} is not an apiVersion of {kind}; use {}", versions.join(" or "));
        Err(WrongType { member, field: "apiVersion", reason })
    }

    /// An object of an unknown kind is skipped, unless its kind is a misspelling of a known one. Only kinds of the same
    /// API group are compared: others, such as Endpoints, are too similar to EndpointSlice.
    fn check_spelling<E>(&self, members: &[Member<E>]) -> Result<ObjectClass, WrongType> {
        let TypeMeta { api_version, kind } = self;
        let same_group = |member: &Member<E>| {
            api_version.is_empty() || member.versions.iter().any(|known| group(known) == group(api_version))
        };
        let candidates = members.iter().enumerate().filter(|(_, member)| same_group(member));
        // Names of lists are compared without `List`, which would make PodList similar to NodeList.
        let (singular, suffix) =
            kind.strip_suffix("List").map_or((kind.as_str(), ""), |singular| (singular, "List"));
        let nearest = candidates
            .map(|(index, member)| (index, member.resource.kind()))
            .filter_map(|(index, known)| Some((misspelling(singular, known)?, index, known)))
            .min_by_key(|(distance, _, _)| *distance);
        let Some((_, index, known)) = nearest else { return Ok(ObjectClass::Other) };
        Err(WrongType {
            member: suffix.is_empty().then_some(index),
            field: "kind",
            reason: format!("{kind:?} is not known; did you mean {known}{suffix}?"),
        })
    }
}

fn group(api_version: &str) -> Option<&str> {
    api_version.split_once('/').map(|(group, _)| group)
}

/// The number of typing errors in `kind`, if it is a misspelling of `known`: at most one in three letters.
fn misspelling(kind: &str, known: &str) -> Option<usize> {
    if kind.len() > MAX_MISSPELLED {
        return None;
    }
    let distance = distance(&kind.to_lowercase(), &known.to_lowercase());
    (distance <= (known.len() / 3).max(1)).then_some(distance)
}

/// The edit distance, where two swapped letters are one edit (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(table[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(table[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        table.push(row);
    }
    table[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::set::ResourceSet;
    use super::*;
    use portway_api::{EndpointSlice, Event, Node, Service, ServiceCidr};

    /// Stands for the events of all resources.
    struct AnyEvent;

    impl<R> From<Event<R>> for AnyEvent {
        fn from(_: Event<R>) -> Self {
            AnyEvent
        }
    }

    fn classify(api_version: &str, kind: &str) -> Result<ObjectClass, String> {
        let members = <(Service, EndpointSlice, Node, ServiceCidr) as ResourceSet<AnyEvent>>::members();
        let type_meta = TypeMeta { api_version: api_version.into(), kind: kind.into() };
        type_meta.classify(&members).map_err(|wrong| wrong.reason)
    }

    #[test]
    fn a_misspelled_kind_is_reported_with_the_nearest_one() {
        for (api_version, kind, meant) in [
            ("v1", "Servcie", "Service"),
            ("v1", "service", "Service"),
            ("v1", "Ndoe", "Node"),
            ("v1", "ServicesList", "ServiceList"),
            ("", "Services", "Service"),
            ("discovery.k8s.io/v1", "EndpointsSlice", "EndpointSlice"),
            ("networking.k8s.io/v1", "ServiceCidr", "ServiceCIDR"),
        ] {
            let expected = format!("{kind:?} is not known; did you mean {meant}?");
            assert_eq!(classify(api_version, kind), Err(expected));
        }
    }

    #[test]
    fn other_kinds_of_kubernetes_are_no_misspellings() {
        let core = [
            "Pod",
            "PodList",
            "Endpoints",
            "EndpointsList",
            "Secret",
            "ServiceAccount",
            "ServiceAccountList",
            "Event",
            "ConfigMap",
            "Namespace",
            "PersistentVolume",
            "ReplicationController",
        ];
        let of_groups = [
            ("rbac.authorization.k8s.io/v1", "RoleList"),
            ("networking.k8s.io/v1", "Ingress"),
            ("networking.k8s.io/v1", "IPAddress"),
            ("serving.knative.dev/v1", "Service"),
            ("example.com/v1", "Device"),
        ];
        for (api_version, kind) in core.map(|kind| ("v1", kind)).into_iter().chain(of_groups) {
            assert_eq!(classify(api_version, kind), Ok(ObjectClass::Other), "{api_version} {kind}");
        }
        assert_eq!(classify("v1", &"Service".repeat(100_000)), Ok(ObjectClass::Other));
    }
}
