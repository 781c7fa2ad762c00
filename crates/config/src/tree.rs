//! A YAML or JSON document as a tree in which every node has its line.
//!
//! Serde's derive stops at the first error and does not keep the lines of values. A file is corrected faster when all
//! its errors are reported at once, each with its line, so the document is first read into this tree, and
//! [`crate::read`] takes the fields from it. Duplicate keys are kept, for the same reason.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};
use std::fmt;

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) value: Value,
}

/// The value of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key of a map and its line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) line: u64,
    pub(crate) name: String,
}

impl Value {
    /// The name of this kind of value in error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Int(_) => "a whole number",
            Value::Float(_) => "a fraction",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a section",
        }
    }
}

/// The error for a document that is neither YAML nor JSON.
#[derive(Debug)]
pub(crate) struct Malformed {
    pub(crate) line: Option<u64>,
    pub(crate) message: String,
}

/// The maximum number of nodes of a document after its aliases are expanded. A complete configuration has about 150; a
/// document with far more is an error or an attack.
const MAX_NODES: usize = 10_000;

/// Reads one document; an empty one is a `Null` node.
pub(crate) fn read(text: &str) -> Result<Node, Malformed> {
    let options = serde_saphyr::options! {
        // With LastWins the visitor gets every pair, duplicates too; `crate::read` reports them.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        budget: serde_saphyr::budget! { max_nodes: MAX_NODES },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Node>(text, options).map_err(|error| {
        let line = error.location().map(|location| location.line()).filter(|line| *line > 0);
        Malformed { line, message: one_line(&error.without_snippet().to_string()) }
    })
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Node { line: spanned.referenced.line(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let key = Key { line: key.referenced.line(), name: key.value };
            map.push((key, entries.next_value()?));
        }
        Ok(Value::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(node: &Node) -> Vec<(u64, &str)> {
        match &node.value {
            Value::Map(map) => map.iter().map(|(key, _)| (key.line, key.name.as_str())).collect(),
            other => panic!("a section expected, found {}", other.kind()),
        }
    }

    #[test]
    fn every_key_has_its_line_and_duplicates_are_kept() {
        let node = read("a: 1\nb:\n  c: x\n\nb: 2\n").expect("parses");
        assert_eq!(keys(&node), [(1, "a"), (2, "b"), (5, "b")]);
    }

    #[test]
    fn json_is_read_too() {
        let node = read("{\n  \"a\": [1, \"2\", null, true],\n  \"b\": 0.5\n}").expect("parses");
        assert_eq!(keys(&node), [(2, "a"), (3, "b")]);
        let Value::Map(map) = &node.value else { panic!("a section expected") };
        let Value::List(list) = &map[0].1.value else { panic!("a list expected") };
        let kinds: Vec<_> = list.iter().map(|node| node.value.kind()).collect();
        assert_eq!(kinds, ["a whole number", "text", "nothing", "true or false"]);
    }

    #[test]
    fn a_malformed_document_reports_its_line() {
        let broken = read("a: 1\nb: [1, 2\nc: 3\n").expect_err("must not parse");
        assert!(broken.line.is_some_and(|line| line >= 2), "{broken:?}");
        assert!(!broken.message.contains('\n'), "{broken:?}");
    }

    #[test]
    fn aliases_cannot_make_a_small_file_large() {
        let mut text = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (before, name) in ('a'..'i').zip('b'..='i') {
            let alias = format!("*{before}");
            text += &format!("{name}: &{name} [{}]\n", [alias.as_str(); 9].join(", "));
        }
        assert!(read(&text).is_err());
        assert!(read(&format!("a: {}", "[".repeat(100_000))).is_err());
    }

    #[test]
    fn an_empty_document_is_null() {
        assert_eq!(read("").expect("parses").value, Value::Null);
        assert_eq!(read("# only a comment\n").expect("parses").value, Value::Null);
    }
}
