//! Kubernetes object types: the fields that Portway reads and writes.
//!
//! One struct serves both wire formats: prost reads the API server's protobuf (the tags are those of upstream's
//! `generated.proto`), serde reads its JSON and the YAML of manifests. Both skip fields that are not listed, so a
//! watched object is never held whole. A type that implements [`Writable`] has every field that a client may set, so an
//! object that was read can be written back.
//!
//! [`Resource`] describes the path under which a type is served and how it is decoded; [`ResourceType`] is the same
//! description as a value. [`Event`] is a change to the objects of one resource, and [`Store`] keeps the compact values
//! that a consumer derives from objects. Everything here is pure: no clock, no I/O.

pub mod address;
pub mod complete;
mod endpoint_slice;
mod endpoints;
mod event;
mod event_record;
mod int_or_string;
mod json_text;
mod lease;
mod meta;
pub mod metadata_only;
mod node;
mod pod;
mod resource;
mod selector;
mod service;
mod service_cidr;
mod store;
#[cfg(test)]
mod tests;
pub mod time;
mod workload;

pub use endpoint_slice::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, Named};
pub use endpoints::{EndpointAddress, EndpointSubset, Endpoints, SubsetPort};
pub use event::Event;
pub use event_record::{EventRecord, EventSeries, ObjectReference};
pub use int_or_string::IntOrString;
pub use lease::{Lease, LeaseSpec};
pub use meta::{ObjectMeta, OwnerReference};
pub use node::{Node, NodeAddress, NodeSpec, NodeStatus, Quantity, Taint};
pub use pod::{Condition, Container, ContainerPort, ContainerStatus, Pod, PodIp, PodSpec, PodStatus};
pub use resource::{Resource, ResourceType, Scope, Writable};
pub use selector::{LabelSelector, Requirement, SelectorError};
pub use service::{
    ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, Service, ServicePort, ServiceSpec,
    ServiceStatus, SessionAffinityConfig,
};
pub use service_cidr::{ServiceCidr, ServiceCidrSpec};
pub use store::{Applied, Store};
pub use time::{MicroTime, Time};
pub use workload::{
    Deployment, DeploymentSpec, DeploymentStatus, DeploymentStrategy, ReplicaSet, ReplicaSetSpec,
    ReplicaSetStatus, RollingUpdate, WorkloadCondition,
};

use serde::{Deserialize, Deserializer};

/// Reads `null` as the default value: Go encodes an empty list as `null`, and a manifest may have `ports:` without a
/// value.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Whether a field has its zero value. The API server leaves such fields out of JSON too.
fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
