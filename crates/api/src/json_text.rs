//! A part of an object as JSON text: it is copied or compared, but none of its fields is read.
//!
//! The text is canonical: keys are sorted and there is no white space, so equal values have equal texts.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub(crate) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    value.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(String::new()),
        value => Ok(value.to_string()),
    }
}
