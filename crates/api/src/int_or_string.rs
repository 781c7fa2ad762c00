//! `util/intstr IntOrString`: a number or a name, as the target port of a Service.

use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The kind of a value that is a name.
const STRING: i64 = 1;

/// A number or a name.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct IntOrString {
    /// 0 for a number, 1 for a name.
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// The number.
    #[prost(int32, tag = "2")]
    pub number: i32,
    /// The name.
    #[prost(string, tag = "3")]
    pub name: String,
}

impl IntOrString {
    /// The name, if it is one.
    pub fn as_name(&self) -> Option<&str> {
        (self.kind == STRING).then_some(&self.name)
    }
}

impl From<i32> for IntOrString {
    fn from(number: i32) -> Self {
        IntOrString { number, ..IntOrString::default() }
    }
}

impl From<&str> for IntOrString {
    fn from(name: &str) -> Self {
        IntOrString { kind: STRING, name: name.to_owned(), ..IntOrString::default() }
    }
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_name() {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_i32(self.number),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number or a name")]
        enum Either {
            Number(i32),
            Name(String),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Number(number) => number.into(),
            Either::Name(name) => name.as_str().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_a_number_or_a_name() {
        for (text, value) in [("8080", IntOrString::from(8080)), ("\"http\"", "http".into())] {
            assert_eq!(serde_json::from_str::<IntOrString>(text).expect("a value"), value);
            assert_eq!(serde_json::to_string(&value).expect("text"), text);
        }
        let error = serde_json::from_str::<IntOrString>("[]").expect_err("a list");
        assert!(error.to_string().contains("a number or a name"), "{error}");
    }
}
