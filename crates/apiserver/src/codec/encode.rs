//! From JSON to protobuf, byte for byte as kube-apiserver encodes it.

use super::scalar;
use super::wire::put_bytes;
use crate::schema::{Field, Scalar, Shape, Type, TypeId};
use serde_json::{Map, Value};
use std::fmt;

/// A value that is not of the type of its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The type with the field.
    pub ty: &'static str,
    /// The names of the fields from the object on.
    pub path: Vec<String>,
    /// The type of the JSON value; of a number that does not fit also the number.
    pub found: String,
    /// The type of the field.
    pub wanted: String,
    /// The table of the object, for the names of types.
    version: &'static str,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { ty, path, found, wanted, .. } = self;
        match path.is_empty() {
            true => write!(f, "json: cannot unmarshal {found} into Go value of type {}.{ty}", self.version),
            false => {
                let path = path.join(".");
                write!(f, "json: cannot unmarshal {found} into Go struct field {ty}.{path} of type {wanted}")
            }
        }
    }
}

impl std::error::Error for Mismatch {}

/// Encodes an object. Fields that the type does not have are left out.
pub fn encode(ty: TypeId, object: &Value) -> Result<Vec<u8>, Mismatch> {
    let mut encoder = Encoder { path: Vec::new() };
    let ty = ty.get();
    let Value::Object(fields) = object else {
        return Err(Mismatch {
            ty: ty.name,
            path: Vec::new(),
            found: kind(object).to_owned(),
            wanted: String::new(),
            version: "v1",
        });
    };
    let mut out = Vec::new();
    encoder.message(ty, fields, &mut out)?;
    Ok(out)
}

struct Encoder<'a> {
    path: Vec<&'a str>,
}

impl<'a> Encoder<'a> {
    fn message(
        &mut self,
        ty: &'static Type,
        object: &'a Map<String, Value>,
        out: &mut Vec<u8>,
    ) -> Result<(), Mismatch> {
        for field in ty.fields_by_tag() {
            if let (true, Scalar::Message(inner)) = (field.inline, field.scalar) {
                let mut message = Vec::new();
                self.message(inner.get(), object, &mut message)?;
                put_bytes(field.tag, &message, out);
                continue;
            }
            match object.get_key_value(field.name).filter(|(_, value)| !value.is_null()) {
                Some((name, value)) => {
                    self.path.push(name);
                    self.field(ty, field, value, out)?;
                    self.path.pop();
                }
                None if field.shape == Shape::Single && !field.pointer => self.absent(field, out)?,
                None => {}
            }
        }
        Ok(())
    }

    /// A field that is always there in protobuf.
    fn absent(&mut self, field: &Field, out: &mut Vec<u8>) -> Result<(), Mismatch> {
        match field.scalar {
            Scalar::Message(inner) => {
                let mut message = Vec::new();
                Encoder { path: Vec::new() }.message(inner.get(), &Map::new(), &mut message)?;
                put_bytes(field.tag, &message, out);
            }
            scalar => scalar::encode_zero(scalar, field.tag, out),
        }
        Ok(())
    }

    fn field(
        &mut self,
        ty: &'static Type,
        field: &Field,
        value: &'a Value,
        out: &mut Vec<u8>,
    ) -> Result<(), Mismatch> {
        match (field.shape, value) {
            (Shape::Single, value) => self.value(ty, field, field.tag, value, out),
            (Shape::List, Value::Array(items)) => {
                items.iter().try_for_each(|item| self.value(ty, field, field.tag, item, out))
            }
            (Shape::Map, Value::Object(items)) => {
                for (key, item) in items {
                    let mut entry = Vec::new();
                    put_bytes(1, key.as_bytes(), &mut entry);
                    self.value(ty, field, 2, item, &mut entry)?;
                    put_bytes(field.tag, &entry, out);
                }
                Ok(())
            }
            (_, value) => Err(self.mismatch(ty, value, whole_type(field))),
        }
    }

    fn value(
        &mut self,
        ty: &'static Type,
        field: &Field,
        tag: u32,
        value: &'a Value,
        out: &mut Vec<u8>,
    ) -> Result<(), Mismatch> {
        let fits = match (field.scalar, value) {
            (Scalar::Message(inner), Value::Object(fields)) => {
                let mut message = Vec::new();
                self.message(inner.get(), fields, &mut message)?;
                put_bytes(tag, &message, out);
                Some(())
            }
            // In a list or a map, null is zero.
            (Scalar::Message(inner), Value::Null) => {
                let mut message = Vec::new();
                Encoder { path: Vec::new() }.message(inner.get(), &Map::new(), &mut message)?;
                put_bytes(tag, &message, out);
                Some(())
            }
            (scalar, Value::Null) => {
                scalar::encode_zero(scalar, tag, out);
                Some(())
            }
            (scalar, value) => scalar::encode(scalar, tag, value, out),
        };
        fits.ok_or_else(|| {
            let wanted =
                if field.shape == Shape::Single { whole_type(field) } else { type_name(field.scalar) };
            self.mismatch(ty, value, wanted)
        })
    }

    fn mismatch(&self, ty: &'static Type, value: &Value, wanted: String) -> Mismatch {
        let path = self.path.iter().map(|name| (*name).to_owned()).collect();
        let found = match value {
            Value::Number(number) if wanted.starts_with("int") => format!("number {number}"),
            value => kind(value).to_owned(),
        };
        Mismatch { ty: ty.name, path, found, wanted, version: "v1" }
    }
}

/// The type of a JSON value, as Go names it.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The type of a field with its items, as Go names it.
fn whole_type(field: &Field) -> String {
    let item = type_name(field.scalar);
    match field.shape {
        Shape::Single => item,
        Shape::List => format!("[]{item}"),
        Shape::Map => format!("map[string]{item}"),
    }
}

fn type_name(scalar: Scalar) -> String {
    match scalar {
        Scalar::String | Scalar::Bytes | Scalar::Quantity => "string".to_owned(),
        Scalar::Bool => "bool".to_owned(),
        Scalar::Int32 | Scalar::IntOrString => "int32".to_owned(),
        Scalar::Int64 | Scalar::Duration => "int64".to_owned(),
        Scalar::Double => "float64".to_owned(),
        Scalar::Time => "v1.Time".to_owned(),
        Scalar::MicroTime => "v1.MicroTime".to_owned(),
        Scalar::FieldsV1 => "v1.FieldsV1".to_owned(),
        Scalar::RawExtension => "runtime.RawExtension".to_owned(),
        Scalar::Texts => "[]string".to_owned(),
        Scalar::Message(ty) => format!("v1.{}", ty.get().name),
    }
}
