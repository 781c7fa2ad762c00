//! The metadata of an object that a controller maintains, encoded: it is read only when the object is compared or
//! replaced, and takes a third of the memory.

use portway_api::ObjectMeta;
use prost::Message;

/// Encoded metadata.
#[derive(Clone, Debug)]
pub struct PackedMeta {
    bytes: Box<[u8]>,
    /// The version as a number. API servers number versions; of one that did not, every event would be the newest.
    pub(crate) version: u64,
    /// It is being deleted.
    pub(crate) deleting: bool,
}

impl PackedMeta {
    pub(crate) fn new(meta: &ObjectMeta) -> PackedMeta {
        PackedMeta {
            bytes: meta.encode_to_vec().into(),
            version: version(meta),
            deleting: meta.deletion_timestamp.is_some(),
        }
    }

    /// The metadata.
    pub(crate) fn unpack(&self) -> ObjectMeta {
        ObjectMeta::decode(&*self.bytes).unwrap_or_default()
    }
}

/// Versions tell objects apart: the order of labels in the encoding is not always the same.
impl PartialEq for PackedMeta {
    fn eq(&self, other: &PackedMeta) -> bool {
        self.version == other.version && self.version != u64::MAX && self.bytes.len() == other.bytes.len()
    }
}

/// The version of an object as a number.
pub(crate) fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.parse().unwrap_or(u64::MAX)
}
