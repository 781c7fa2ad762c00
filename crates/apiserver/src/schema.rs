//! The fields of every kind that is served: their names in JSON and numbers in protobuf, and how lists are merged.
//!
//! The tables in `schema/` are the only place where a field is defined. Both codecs, strict validation of fields,
//! patches, field ownership and the OpenAPI documents read them.

mod parse;

use parse::parse;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The tables, by the name under which they refer to each other.
const TABLES: &[(&str, &str)] = &[
    ("meta", include_str!("../schema/meta_v1.schema")),
    ("core", include_str!("../schema/core_v1.schema")),
    ("apps", include_str!("../schema/apps_v1.schema")),
    ("discovery", include_str!("../schema/discovery_v1.schema")),
    ("networking", include_str!("../schema/networking_v1.schema")),
    ("coordination", include_str!("../schema/coordination_v1.schema")),
    ("events", include_str!("../schema/events_v1.schema")),
    ("autoscaling", include_str!("../schema/autoscaling_v1.schema")),
    ("authorization", include_str!("../schema/authorization_v1.schema")),
    ("authentication", include_str!("../schema/authentication_v1.schema")),
    ("policy", include_str!("../schema/policy_v1.schema")),
];

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| parse(TABLES));

/// A type of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(usize);

impl TypeId {
    /// The type.
    pub fn get(self) -> &'static Type {
        &SCHEMA.types[self.0]
    }
}

/// Finds a type by table and name: `core` and `Service`.
pub fn find(table: &str, name: &str) -> Option<TypeId> {
    SCHEMA.by_name.get(&format!("{table}.{name}")).copied()
}

/// All types.
pub fn all() -> impl Iterator<Item = TypeId> {
    (0..SCHEMA.types.len()).map(TypeId)
}

/// All tables.
#[derive(Debug, Default)]
struct Schema {
    types: Vec<Type>,
    by_name: HashMap<String, TypeId>,
}

/// A message.
#[derive(Debug)]
pub struct Type {
    /// The table that it is in.
    pub table: &'static str,
    /// Its name within the table.
    pub name: &'static str,
    /// Whether it is a kind, with `apiVersion` and `kind`.
    pub is_kind: bool,
    /// Its fields, in the order in which they are printed.
    pub fields: Vec<Field>,
    by_name: HashMap<&'static str, usize>,
    /// The positions of the fields in the order of their numbers.
    by_tag: Vec<usize>,
    inline: Vec<usize>,
}

impl Type {
    /// The field of a name in JSON; also one of a message whose fields are printed among those of this one.
    pub fn field(&self, name: &str) -> Option<&Field> {
        match self.by_name.get(name) {
            Some(index) => Some(&self.fields[*index]),
            None => self.inline.iter().find_map(|index| match self.fields[*index].scalar {
                Scalar::Message(inner) => inner.get().field(name),
                _ => None,
            }),
        }
    }

    /// The fields in the order of their numbers.
    pub fn fields_by_tag(&self) -> impl Iterator<Item = &Field> {
        self.by_tag.iter().map(|index| &self.fields[*index])
    }
}

/// A field.
#[derive(Debug)]
pub struct Field {
    /// Its name in JSON.
    pub name: &'static str,
    /// Its number in protobuf.
    pub tag: u32,
    /// The type of its value, or of the items.
    pub scalar: Scalar,
    /// Whether it has items.
    pub shape: Shape,
    /// Whether clients have to set it.
    pub required: bool,
    /// Whether the fields of the message are printed among those of the type that has this field.
    pub inline: bool,
    /// Whether the field may be absent, so that zero is something else than nothing.
    pub pointer: bool,
    /// Whether it is printed if it is absent or zero.
    pub always: bool,
    /// How a list is owned and merged by server-side apply.
    pub list: List,
    /// Whether a map or a message is owned as a whole by server-side apply.
    pub atomic: bool,
    /// How a strategic merge patch treats it.
    pub patch: Patch,
    /// The value that it gets if it is not set, as text.
    pub default: Option<&'static str>,
    /// The values that it may have, if they are listed.
    pub values: Vec<&'static str>,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Text.
    String,
    /// True or false.
    Bool,
    /// A number of 32 bits.
    Int32,
    /// A number of 64 bits.
    Int64,
    /// A floating-point number.
    Double,
    /// Bytes, in JSON as base64.
    Bytes,
    /// A time in seconds.
    Time,
    /// A time in microseconds.
    MicroTime,
    /// A duration in nanoseconds, in JSON as text.
    Duration,
    /// A number with a unit.
    Quantity,
    /// A number or a name.
    IntOrString,
    /// A tree of field names.
    FieldsV1,
    /// Any object.
    RawExtension,
    /// A list of texts that is a message in protobuf.
    Texts,
    /// A message.
    Message(TypeId),
}

/// Whether a field has one value, or items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    #[default]
    Single,
    /// A list.
    List,
    /// A map with texts as keys.
    Map,
}

/// How a list is owned and merged by server-side apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum List {
    /// As a whole.
    #[default]
    Atomic,
    /// By the values of its items.
    Set,
    /// By these fields of its items.
    Map(Vec<&'static str>),
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// Lists are merged instead of replaced.
    pub merge: bool,
    /// Items are the same if this field of them is.
    pub key: Option<&'static str>,
    /// Only fields that the patch lists are kept.
    pub retain_keys: bool,
}

#[cfg(test)]
mod tests;
