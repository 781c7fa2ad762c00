//! Fields that a type does not have, and fields that are there twice: what `fieldValidation=Strict` refuses.

use crate::schema::{Scalar, Shape, Type, TypeId};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Mistakes that are reported at most.
const MAX: usize = 20;
/// Fields of every object that are not in the tables.
const TYPE_META: [&str; 2] = ["kind", "apiVersion"];

/// A field that strict validation refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// The type has no such field.
    Unknown(String),
    /// It is there twice.
    Duplicate(String),
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldError::Unknown(path) => write!(f, "unknown field {path:?}"),
            FieldError::Duplicate(path) => write!(f, "duplicate field {path:?}"),
        }
    }
}

/// Looks for such fields in the JSON text of an object. Text that is no JSON has none.
pub fn check(ty: TypeId, json: &[u8]) -> Vec<FieldError> {
    let mut found = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let place =
        Place { ty: Expected::Message(ty.get()), path: String::new(), found: &mut found, is_object: true };
    _ = deserializer.deserialize_any(place);
    found.truncate(MAX);
    found
}

/// What a value is expected to be.
#[derive(Clone, Copy)]
enum Expected {
    Message(&'static Type),
    /// A map of these.
    Map(Scalar),
    /// Anything, in which fields have no meaning.
    Any,
}

/// A value within the object.
struct Place<'a> {
    ty: Expected,
    path: String,
    found: &'a mut Vec<FieldError>,
    /// Whether it has `kind` and `apiVersion`.
    is_object: bool,
}

impl Expected {
    fn of(scalar: Scalar) -> Expected {
        match scalar {
            Scalar::Message(ty) => Expected::Message(ty.get()),
            _ => Expected::Any,
        }
    }
}

impl Place<'_> {
    /// What the value of a key is expected to be. Reports an unknown one.
    fn expected(&mut self, key: &str, path: &str) -> Expected {
        match self.ty {
            Expected::Any => Expected::Any,
            Expected::Map(scalar) => Expected::of(scalar),
            Expected::Message(ty) => match ty.field(key) {
                Some(field) if field.shape == Shape::Map => Expected::Map(field.scalar),
                Some(field) => Expected::of(field.scalar),
                None => {
                    if !self.is_object || !TYPE_META.contains(&key) {
                        self.found.push(FieldError::Unknown(path.to_owned()));
                    }
                    Expected::Any
                }
            },
        }
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for Place<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            let ty = self.expected(&key, &path);
            if !seen.insert(key) {
                self.found.push(FieldError::Duplicate(path.clone()));
            }
            map.next_value_seed(Place { ty, path, found: self.found, is_object: false })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0.. {
            let path = format!("{}[{index}]", self.path);
            let place = Place { ty: self.ty, path, found: self.found, is_object: false };
            if items.next_element_seed(place)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
