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
    let mut search = Search { path: Vec::new(), found: Vec::new() };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let place = Place { ty: Expected::Message(ty.get()), search: &mut search, is_object: true };
    _ = deserializer.deserialize_any(place);
    search.found
}

/// The way to the value that is looked at, and what was found on it.
struct Search {
    path: Vec<Segment>,
    found: Vec<FieldError>,
}

enum Segment {
    Name(String),
    Index(usize),
}

impl Search {
    /// Reports the field that the way leads to, unless enough was reported: a path is written only then.
    fn report(&mut self, error: fn(String) -> FieldError) {
        if self.found.len() >= MAX {
            return;
        }
        let mut path = String::new();
        for segment in &self.path {
            match segment {
                Segment::Name(name) if path.is_empty() => path.push_str(name),
                Segment::Name(name) => {
                    path.push('.');
                    path.push_str(name);
                }
                Segment::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        self.found.push(error(path));
    }
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
    search: &'a mut Search,
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
    /// What the value of a key is expected to be. Reports an unknown one, to which the way leads.
    fn expected(&mut self, key: &str) -> Expected {
        match self.ty {
            Expected::Any => Expected::Any,
            Expected::Map(scalar) => Expected::of(scalar),
            Expected::Message(ty) => match ty.field(key) {
                Some(field) if field.shape == Shape::Map => Expected::Map(field.scalar),
                Some(field) => Expected::of(field.scalar),
                None => {
                    if !self.is_object || !TYPE_META.contains(&key) {
                        self.search.report(FieldError::Unknown);
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
            self.search.path.push(Segment::Name(key.clone()));
            let ty = self.expected(&key);
            if !seen.insert(key) {
                self.search.report(FieldError::Duplicate);
            }
            map.next_value_seed(Place { ty, search: self.search, is_object: false })?;
            self.search.path.pop();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        for index in 0.. {
            self.search.path.push(Segment::Index(index));
            let place = Place { ty: self.ty, search: self.search, is_object: false };
            let item = items.next_element_seed(place)?;
            self.search.path.pop();
            if item.is_none() {
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
