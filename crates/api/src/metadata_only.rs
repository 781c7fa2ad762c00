//! Resources of which only the metadata is read and requested: the garbage collection follows their owner references.

use crate::ObjectMeta;
use crate::resource::resource;
use prost::Message;
use serde::{Deserialize, Serialize};

macro_rules! metadata_only {
    ($type:ident, $group:literal, $kind:literal, $plural:literal, $scope:ident) => {
        #[doc = concat!("The metadata of a `", $kind, "`.")]
        #[derive(Clone, PartialEq, Message, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $type {
            /// Metadata.
            #[prost(message, optional, tag = "1")]
            pub metadata: Option<ObjectMeta>,
        }

        resource!($type, $group, $kind, $plural, $scope, metadata_only: true);
    };
}

metadata_only!(Namespace, "", "Namespace", "namespaces", Cluster);
metadata_only!(ConfigMap, "", "ConfigMap", "configmaps", Namespaced);
metadata_only!(Secret, "", "Secret", "secrets", Namespaced);
metadata_only!(ServiceAccount, "", "ServiceAccount", "serviceaccounts", Namespaced);
