//! Reads the tables.
//!
//! A line `message NAME` or `kind NAME` begins a type. The lines that follow are its fields: name, number in protobuf,
//! type, and markers. The tables are part of the program, so a mistake in them is a mistake of the program, and ends
//! the tests.

use super::{Field, List, Patch, Scalar, Schema, Shape, Type, TypeId};
use std::collections::HashMap;

/// Reads all tables.
///
/// # Panics
///
/// If a line is not as described, or refers to a type that does not exist.
pub(super) fn parse(tables: &[(&'static str, &'static str)]) -> Schema {
    let mut schema = Schema::default();
    for (table, text) in tables {
        for line in text.lines() {
            let Some((word, name)) = line.split_once(' ').filter(|(word, _)| !word.is_empty()) else {
                continue;
            };
            assert!(matches!(word, "message" | "kind"), "{table}: {line:?} begins no type");
            schema.by_name.insert(format!("{table}.{name}"), TypeId(schema.types.len()));
            schema.types.push(Type {
                table,
                name,
                is_kind: word == "kind",
                fields: Vec::new(),
                by_name: HashMap::new(),
                by_tag: Vec::new(),
                inline: Vec::new(),
            });
        }
    }
    let mut next = 0;
    for (table, text) in tables {
        for line in text.lines() {
            match line.strip_prefix("  ") {
                Some(line) => {
                    let field = field(table, line, &schema.by_name);
                    schema.types[next - 1].add(field);
                }
                None => next += usize::from(!line.is_empty()),
            }
        }
    }
    schema
}

impl Type {
    fn add(&mut self, field: Field) {
        let index = self.fields.len();
        let at = self.by_tag.partition_point(|known| self.fields[*known].tag < field.tag);
        self.by_tag.insert(at, index);
        if field.inline {
            self.inline.push(index);
        } else {
            self.by_name.insert(field.name, index);
        }
        self.fields.push(field);
    }
}

fn field(table: &str, line: &'static str, types: &HashMap<String, TypeId>) -> Field {
    let mut words = line.split(' ');
    let (Some(name), Some(tag), Some(text)) = (words.next(), words.next(), words.next()) else {
        panic!("{table}: {line:?} is no field");
    };
    let (scalar, shape) = match (text.strip_prefix("[]"), text.strip_prefix("map<")) {
        (Some(item), _) => (item, Shape::List),
        (_, Some(item)) => (item.trim_end_matches('>'), Shape::Map),
        _ => (text, Shape::Single),
    };
    let mut field = Field {
        name,
        tag: tag.parse().unwrap_or_else(|_| panic!("{table}: {line:?}: {tag:?} is no number")),
        scalar: self::scalar(table, scalar, types)
            .unwrap_or_else(|| panic!("{table}: {line:?}: no type {scalar:?}")),
        shape,
        required: false,
        inline: false,
        pointer: false,
        always: false,
        list: List::default(),
        atomic: false,
        patch: Patch::default(),
        default: None,
        values: Vec::new(),
    };
    for marker in words {
        let (marker, value) = marker.split_once('=').unwrap_or((marker, ""));
        match marker {
            "required" => field.required = true,
            "inline" => field.inline = true,
            "pointer" => field.pointer = true,
            "always" => field.always = true,
            "map" => field.atomic = value == "atomic",
            "default" => field.default = Some(value),
            "enum" => field.values = value.split('|').collect(),
            "list" => {
                field.list = match (value, in_parentheses(value)) {
                    ("set", _) => List::Set,
                    (_, Some(keys)) => List::Map(keys.split(',').collect()),
                    _ => List::Atomic,
                }
            }
            "patch" => {
                field.patch = Patch {
                    merge: value.contains("merge"),
                    key: in_parentheses(value),
                    retain_keys: value.contains("retainKeys"),
                }
            }
            other => panic!("{table}: {line:?}: no marker {other:?}"),
        }
    }
    field
}

fn in_parentheses(text: &'static str) -> Option<&'static str> {
    Some(text.split_once('(')?.1.trim_end_matches(')'))
}

fn scalar(table: &str, name: &str, types: &HashMap<String, TypeId>) -> Option<Scalar> {
    Some(match name {
        "string" => Scalar::String,
        "bool" => Scalar::Bool,
        "int32" => Scalar::Int32,
        "int64" => Scalar::Int64,
        "double" => Scalar::Double,
        "bytes" => Scalar::Bytes,
        "Time" => Scalar::Time,
        "MicroTime" => Scalar::MicroTime,
        "Duration" => Scalar::Duration,
        "Quantity" => Scalar::Quantity,
        "IntOrString" => Scalar::IntOrString,
        "FieldsV1" => Scalar::FieldsV1,
        "RawExtension" => Scalar::RawExtension,
        "ExtraValue" | "Verbs" => Scalar::Texts,
        name => {
            let full = if name.contains('.') { name.to_owned() } else { format!("{table}.{name}") };
            Scalar::Message(*types.get(&full)?)
        }
    })
}
