//! The four resources that a node's plans depend on, in one event type.

use portway_api::{EndpointSlice, Event, Node, ObjectMeta, Resource, ResourceType, Service, ServiceCidr};
use serde::Serialize;
use std::fmt;

/// An event of one of the resources that [`crate::Cluster`] is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterEvent {
    /// Of Services.
    Service(Event<Service>),
    /// Of EndpointSlices.
    EndpointSlice(Event<EndpointSlice>),
    /// Of Nodes.
    Node(Event<Node>),
    /// Of ServiceCIDRs.
    ServiceCidr(Event<ServiceCidr>),
}

impl fmt::Display for ClusterEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn write<R: Resource>(event: &Event<R>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} ", R::TYPE)?;
            match event {
                Event::Init => f.write_str("list begins"),
                Event::InitDone => f.write_str("list is complete"),
                Event::Apply(object) => {
                    let meta = object.metadata();
                    let part = |part: fn(&ObjectMeta) -> &String| meta.map_or("", |meta| part(meta).as_str());
                    write!(f, "{}/{} changed", part(|meta| &meta.namespace), part(|meta| &meta.name))
                }
                Event::Delete { namespace, name, .. } => write!(f, "{namespace}/{name} was deleted"),
            }
        }
        match self {
            ClusterEvent::Service(event) => write(event, f),
            ClusterEvent::EndpointSlice(event) => write(event, f),
            ClusterEvent::Node(event) => write(event, f),
            ClusterEvent::ServiceCidr(event) => write(event, f),
        }
    }
}

/// An object of one of these resources.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// An EndpointSlice.
    EndpointSlice(EndpointSlice),
    /// A Node.
    Node(Node),
    /// A ServiceCIDR: ranges of cluster IPs.
    ServiceCidr(ServiceCidr),
}

/// Evaluates an expression for the content of any variant of either enum.
macro_rules! each {
    ($enum:ident, $value:expr, $object:ident => $result:expr) => {
        match $value {
            $enum::Service($object) => $result,
            $enum::EndpointSlice($object) => $result,
            $enum::Node($object) => $result,
            $enum::ServiceCidr($object) => $result,
        }
    };
}

impl Object {
    /// The resource of the object.
    pub fn resource_type(&self) -> ResourceType {
        fn of<R: Resource>(_: &R) -> ResourceType {
            R::TYPE
        }
        each!(Object, self, object => of(object))
    }

    /// Its metadata, if it has any.
    pub fn metadata(&self) -> Option<&ObjectMeta> {
        each!(Object, self, object => object.metadata())
    }

    /// Its metadata, mutable.
    pub fn metadata_mut(&mut self) -> &mut Option<ObjectMeta> {
        each!(Object, self, object => object.metadata_mut())
    }

    /// The object in protobuf, without the envelope.
    pub fn to_protobuf(&self) -> Vec<u8> {
        each!(Object, self, object => prost::Message::encode_to_vec(object))
    }
}

impl ClusterEvent {
    /// The resource of the event.
    pub fn resource_type(&self) -> ResourceType {
        fn of<R: Resource>(_: &Event<R>) -> ResourceType {
            R::TYPE
        }
        each!(ClusterEvent, self, event => of(event))
    }
}

impl From<Object> for ClusterEvent {
    fn from(object: Object) -> ClusterEvent {
        each!(Object, object, object => Event::Apply(object).into())
    }
}

macro_rules! from_events {
    ($($resource:ident)*) => {$(
        impl From<Event<$resource>> for ClusterEvent {
            fn from(event: Event<$resource>) -> ClusterEvent {
                ClusterEvent::$resource(event)
            }
        }

        impl From<$resource> for Object {
            fn from(object: $resource) -> Object {
                Object::$resource(object)
            }
        }
    )*};
}

from_events! { Service EndpointSlice Node ServiceCidr }
