//! Description of a resource: group, version, kind, path, and how objects are decoded.
//!
//! [`Resource`] is the type-level description; [`ResourceType`] is the same description as a small value that can be a
//! map key, a metrics label or a part of a message.

use crate::meta::ObjectMeta;
use prost::Message;
use prost::bytes::Buf;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// Whether objects are in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// One object per name in the cluster.
    Cluster,
    /// One object per name in each namespace.
    Namespaced,
}

/// A kind of object that an API server serves.
pub trait Resource:
    Message + Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// API group; empty for the core group.
    const GROUP: &'static str;
    /// Version that is requested from the API server.
    const VERSION: &'static str = "v1";
    /// Older versions with the same fields, which manifests may name.
    const OLDER_VERSIONS: &'static [&'static str] = &[];
    /// Kind, as in `kind: Service`.
    const KIND: &'static str;
    /// Plural name in lower case, as in paths and RBAC rules.
    const PLURAL: &'static str;
    /// Whether objects are in namespaces.
    const SCOPE: Scope;
    /// Whether the type has a part of the object as JSON text, so that it cannot be decoded from protobuf.
    const JSON_ONLY: bool = false;
    /// Whether the type has nothing but metadata, so that the server need not send the rest of the objects.
    const METADATA_ONLY: bool = false;
    /// The same description as a value.
    const TYPE: ResourceType = ResourceType(&Description {
        group: Self::GROUP,
        version: Self::VERSION,
        kind: Self::KIND,
        plural: Self::PLURAL,
        scope: Self::SCOPE,
        json_only: Self::JSON_ONLY,
        metadata_only: Self::METADATA_ONLY,
    });

    /// The object's metadata, if it has any.
    fn metadata(&self) -> Option<&ObjectMeta>;

    /// The object's metadata, to be changed.
    fn metadata_mut(&mut self) -> &mut Option<ObjectMeta>;

    /// Decodes the object from protobuf, without the envelope.
    fn from_protobuf(bytes: impl Buf) -> Result<Self, prost::DecodeError> {
        Self::decode(bytes)
    }

    /// Decodes the object from JSON.
    fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

/// A resource whose type has every field that a client may set, so that writing an object back loses no data.
pub trait Writable: Resource {}

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Description {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    scope: Scope,
    json_only: bool,
    metadata_only: bool,
}

/// A [`Resource`] as a value of pointer size. `Display` prints the kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceType(&'static Description);

impl ResourceType {
    /// API group; empty for the core group.
    pub const fn group(self) -> &'static str {
        self.0.group
    }

    /// Version within the group.
    pub const fn version(self) -> &'static str {
        self.0.version
    }

    /// Kind, as in `kind: Service`.
    pub const fn kind(self) -> &'static str {
        self.0.kind
    }

    /// Plural name in lower case.
    pub const fn plural(self) -> &'static str {
        self.0.plural
    }

    /// Whether objects are in namespaces.
    pub const fn scope(self) -> Scope {
        self.0.scope
    }

    /// Whether objects have to be requested as JSON.
    pub const fn json_only(self) -> bool {
        self.0.json_only
    }

    /// Whether only the metadata of objects has to be requested.
    pub const fn metadata_only(self) -> bool {
        self.0.metadata_only
    }

    /// The value of `apiVersion`: `v1`, `discovery.k8s.io/v1`.
    pub fn api_version(self) -> String {
        match self.0.group {
            "" => self.0.version.to_owned(),
            group => format!("{group}/{}", self.0.version),
        }
    }

    /// Plural name and group, as RBAC messages and `kubectl auth can-i` write them: `services`,
    /// `endpointslices.discovery.k8s.io`.
    pub fn qualified(self) -> String {
        match self.0.group {
            "" => self.0.plural.to_owned(),
            group => format!("{}.{group}", self.0.plural),
        }
    }

    /// Path of the collection in a namespace; without one, in all namespaces or of cluster-scoped objects.
    pub fn path(self, namespace: Option<&str>) -> String {
        let Description { group, version, plural, .. } = self.0;
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        match namespace {
            Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{version}/{plural}"),
        }
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.kind)
    }
}

impl fmt::Debug for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified())
    }
}

/// Implements [`Resource`] for a type with a `metadata: Option<ObjectMeta>`.
macro_rules! resource {
    (
        $type:ty, $group:literal, $kind:literal, $plural:literal, $scope:ident
        $(, older: $older:expr)? $(, json_only: $json_only:literal)? $(, metadata_only: $metadata_only:literal)?
    ) => {
        impl $crate::Resource for $type {
            const GROUP: &'static str = $group;
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
            const SCOPE: $crate::Scope = $crate::Scope::$scope;
            $(const OLDER_VERSIONS: &'static [&'static str] = $older;)?
            $(const JSON_ONLY: bool = $json_only;)?
            $(const METADATA_ONLY: bool = $metadata_only;)?

            fn metadata(&self) -> Option<&$crate::ObjectMeta> {
                self.metadata.as_ref()
            }

            fn metadata_mut(&mut self) -> &mut Option<$crate::ObjectMeta> {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use resource;

#[cfg(test)]
mod tests {
    use crate::{EndpointSlice, Lease, Node, Resource, Service, ServiceCidr};

    #[test]
    fn paths_and_names_of_resource_types() {
        assert_eq!(Service::TYPE.path(None), "/api/v1/services");
        assert_eq!(Node::TYPE.path(None), "/api/v1/nodes");
        assert_eq!(Service::TYPE.path(Some("shop")), "/api/v1/namespaces/shop/services");
        assert_eq!(EndpointSlice::TYPE.path(None), "/apis/discovery.k8s.io/v1/endpointslices");
        assert_eq!(
            Lease::TYPE.path(Some("kube-system")),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
        );
        assert_eq!(Service::TYPE.qualified(), "services");
        assert_eq!(ServiceCidr::TYPE.qualified(), "servicecidrs.networking.k8s.io");
        assert_eq!(ServiceCidr::TYPE.to_string(), "ServiceCIDR");
        assert_eq!(
            (Node::TYPE.api_version(), Lease::TYPE.api_version()),
            ("v1".into(), "coordination.k8s.io/v1".into())
        );
    }

    #[test]
    fn types_are_compared_by_content() {
        assert_eq!(Service::TYPE, Service::TYPE);
        assert_ne!(Service::TYPE, Node::TYPE);
        assert_eq!(size_of_val(&Service::TYPE), size_of::<usize>());
    }
}
