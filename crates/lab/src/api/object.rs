//! Any object that the server has, of whatever resource.

use portway_model::api::{Object, ObjectMeta, Resource, ResourceType, Service};
use serde_json::Value;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// An object of any resource.
pub(super) trait AnyObject: Debug + Send + Sync {
    fn resource(&self) -> ResourceType;
    fn meta(&self) -> Option<&ObjectMeta>;
    fn protobuf(&self) -> Vec<u8>;
    fn json(&self) -> Value;
    /// With other metadata.
    fn with_meta(&self, meta: ObjectMeta) -> Arc<dyn AnyObject>;
    fn as_any(&self) -> &dyn Any;
}

impl<R: Resource + Debug> AnyObject for R {
    fn resource(&self) -> ResourceType {
        R::TYPE
    }

    fn meta(&self) -> Option<&ObjectMeta> {
        self.metadata()
    }

    fn protobuf(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn json(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["apiVersion"] = R::TYPE.api_version().into();
        value["kind"] = R::KIND.into();
        value
    }

    fn with_meta(&self, meta: ObjectMeta) -> Arc<dyn AnyObject> {
        let mut object = self.clone();
        *object.metadata_mut() = Some(meta);
        Arc::new(object)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An object of the resources that the proxy watches.
pub(super) fn any(object: Object) -> Arc<dyn AnyObject> {
    match object {
        Object::Service(object) => Arc::new(object),
        Object::EndpointSlice(object) => Arc::new(object),
        Object::Node(object) => Arc::new(object),
        Object::ServiceCidr(object) => Arc::new(object),
    }
}

/// Namespace and name.
pub(super) fn key(object: &dyn AnyObject) -> String {
    object.meta().map_or(String::new(), |meta| format!("{}/{}", meta.namespace, meta.name))
}

/// Whether an object matches a field selector. Only `metadata.name=` and `spec.clusterIP!=` are supported.
pub(super) fn selected(object: &dyn AnyObject, field: Option<&str>) -> bool {
    let Some(field) = field else { return true };
    if let Some(name) = field.strip_prefix("metadata.name=") {
        return object.meta().is_some_and(|meta| meta.name == name);
    }
    match (field.strip_prefix("spec.clusterIP!="), object.as_any().downcast_ref::<Service>()) {
        (Some(ip), Some(service)) => service.spec.as_ref().is_none_or(|spec| spec.cluster_ip != ip),
        _ => true,
    }
}
