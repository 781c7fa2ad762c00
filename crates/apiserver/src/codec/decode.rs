//! From protobuf to JSON.

use super::scalar::{self, text};
use super::text::{put_name, put_string};
use super::wire::{Entry, Wire, last, last_bytes, read};
use crate::schema::{Field, Scalar, Shape, Type, TypeId};
use serde_json::Value;
use std::borrow::Cow;

/// Messages in messages at most: deeper ones are attempts to exhaust the stack.
const MAX_DEPTH: u8 = 40;

/// Why bytes are not the message that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They are no message, or a field has another type.
    #[error("the message cannot be decoded")]
    Malformed,
    /// It has messages within messages without an end.
    #[error("the message is nested too deeply")]
    TooDeep,
}

/// What is printed besides the fields of the message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Printed<'a> {
    /// `kind` and `apiVersion`.
    pub kind: Option<(&'a str, &'a str)>,
    /// `metadata.resourceVersion`, which is not part of the stored message.
    pub revision: Option<&'a str>,
}

/// Prints a message as JSON.
pub fn print(ty: TypeId, bytes: &[u8], printed: Printed<'_>, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    out.push(b'{');
    let mut first = true;
    if let Some((kind, version)) = printed.kind {
        put_name("kind", &mut first, out);
        put_string(kind, out);
        put_name("apiVersion", &mut first, out);
        put_string(version, out);
    }
    Printer { revision: printed.revision, depth: 0 }.fields(ty.get(), bytes, &mut first, out)?;
    out.push(b'}');
    Ok(())
}

/// A message as a JSON tree.
pub fn decode(ty: TypeId, bytes: &[u8], printed: Printed<'_>) -> Result<Value, DecodeError> {
    let mut json = Vec::with_capacity(bytes.len() * 3);
    print(ty, bytes, printed, &mut json)?;
    serde_json::from_slice(&json).map_err(|_| DecodeError::Malformed)
}

#[derive(Clone, Copy)]
struct Printer<'a> {
    revision: Option<&'a str>,
    depth: u8,
}

impl Printer<'_> {
    fn fields(self, ty: &Type, bytes: &[u8], first: &mut bool, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        if self.depth > MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        let entries = read(bytes)?;
        for field in &ty.fields {
            match (field.inline, field.scalar) {
                (true, Scalar::Message(inner)) => {
                    let bytes = merged(&entries, field.tag)?.unwrap_or_default();
                    self.deeper().fields(inner.get(), &bytes, first, out)?;
                }
                _ => self.field(ty, field, &entries, first, out)?,
            }
        }
        Ok(())
    }

    fn deeper(self) -> Self {
        Printer { depth: self.depth + 1, ..self }
    }

    fn field(
        self,
        ty: &Type,
        field: &Field,
        entries: &[Entry<'_>],
        first: &mut bool,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        match field.shape {
            Shape::Single => self.single(ty, field, entries, first, out),
            Shape::List => self.list(field, entries, first, out),
            Shape::Map => self.map(field, entries, first, out),
        }
    }

    fn single(
        self,
        ty: &Type,
        field: &Field,
        entries: &[Entry<'_>],
        first: &mut bool,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let is_version = self.depth == 1 && ty.name == "ObjectMeta" && field.name == "resourceVersion";
        if let Some(revision) = self.revision.filter(|_| is_version) {
            put_name(field.name, first, out);
            put_string(revision, out);
            return Ok(());
        }
        if let Scalar::Message(inner) = field.scalar {
            // One that is always there is empty if it is absent.
            let absent = || (field.always && !field.pointer).then(Cow::default);
            match merged(entries, field.tag)?.or_else(absent) {
                Some(bytes) => {
                    put_name(field.name, first, out);
                    self.message(inner, &bytes, out)?;
                }
                None => put_absent(field, first, out),
            }
            return Ok(());
        }
        let found =
            last(entries, field.tag).filter(|value| field.pointer || !scalar::is_zero(field.scalar, *value));
        let Some(value) = found else {
            put_absent(field, first, out);
            return Ok(());
        };
        // Some values turn out to be zero only when they are read.
        let (before, was_first) = (out.len(), *first);
        put_name(field.name, first, out);
        if !scalar::print(field.scalar, value, out)? {
            out.truncate(before);
            *first = was_first;
            put_absent(field, first, out);
        }
        Ok(())
    }

    fn message(self, ty: TypeId, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        out.push(b'{');
        self.deeper().fields(ty.get(), bytes, &mut true, out)?;
        out.push(b'}');
        Ok(())
    }

    fn value(self, scalar: Scalar, value: Wire<'_>, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        match (scalar, value) {
            (Scalar::Message(ty), Wire::Bytes(bytes)) => self.message(ty, bytes, out),
            (Scalar::Message(_), _) => Err(DecodeError::Malformed),
            _ => {
                if !scalar::print(scalar, value, out)? {
                    out.extend_from_slice(b"null");
                }
                Ok(())
            }
        }
    }

    fn list(
        self,
        field: &Field,
        entries: &[Entry<'_>],
        first: &mut bool,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let mut items = entries.iter().filter(|(tag, _)| *tag == field.tag).peekable();
        if items.peek().is_none() {
            put_absent(field, first, out);
            return Ok(());
        }
        put_name(field.name, first, out);
        let mut separator = b'[';
        for (_, value) in items {
            match (field.scalar, *value) {
                // Numbers may be packed into one value.
                (Scalar::Int32 | Scalar::Int64 | Scalar::Bool, Wire::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        let number = super::wire::varint(&mut packed)?;
                        out.push(std::mem::replace(&mut separator, b','));
                        self.value(field.scalar, Wire::Varint(number), out)?;
                    }
                }
                (scalar, value) => {
                    out.push(std::mem::replace(&mut separator, b','));
                    self.value(scalar, value, out)?;
                }
            }
        }
        if separator == b'[' {
            out.push(b'[');
        }
        out.push(b']');
        Ok(())
    }

    fn map(
        self,
        field: &Field,
        entries: &[Entry<'_>],
        first: &mut bool,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let mut items: Vec<(&str, Option<Wire<'_>>)> = Vec::new();
        for (_, value) in entries.iter().filter(|(tag, _)| *tag == field.tag) {
            let Wire::Bytes(bytes) = value else { return Err(DecodeError::Malformed) };
            let entry = read(bytes)?;
            items.push((text(last_bytes(&entry, 1).unwrap_or_default())?, last(&entry, 2)));
        }
        if items.is_empty() {
            put_absent(field, first, out);
            return Ok(());
        }
        // Of a key that is there twice, the last value counts.
        items.sort_by_key(|(key, _)| *key);
        put_name(field.name, first, out);
        let mut separator = b'{';
        for (index, (key, value)) in items.iter().enumerate() {
            if items.get(index + 1).is_some_and(|(next, _)| next == key) {
                continue;
            }
            out.push(std::mem::replace(&mut separator, b','));
            put_string(key, out);
            out.push(b':');
            match value {
                Some(value) => self.value(field.scalar, *value, out)?,
                None => match field.scalar {
                    Scalar::Message(_) => out.extend_from_slice(b"{}"),
                    Scalar::Texts => out.extend_from_slice(b"[]"),
                    scalar => out.extend_from_slice(scalar::zero(scalar)),
                },
            }
        }
        out.push(b'}');
        Ok(())
    }
}

/// The message of a field. One that is there several times is merged, which is what its bytes one after the other mean.
fn merged<'a>(entries: &[Entry<'a>], tag: u32) -> Result<Option<Cow<'a, [u8]>>, DecodeError> {
    let mut found: Option<Cow<'a, [u8]>> = None;
    for (_, value) in entries.iter().filter(|(known, _)| *known == tag) {
        let Wire::Bytes(bytes) = value else { return Err(DecodeError::Malformed) };
        match &mut found {
            None => found = Some(Cow::Borrowed(bytes)),
            Some(all) => all.to_mut().extend_from_slice(bytes),
        }
    }
    Ok(found)
}

/// Prints a field that has no value, if it is always printed.
fn put_absent(field: &Field, first: &mut bool, out: &mut Vec<u8>) {
    if !field.always {
        return;
    }
    put_name(field.name, first, out);
    out.extend_from_slice(match (field.shape, field.scalar) {
        _ if field.pointer => b"null",
        (Shape::List | Shape::Map, _) | (_, Scalar::Message(_)) => b"null",
        (Shape::Single, scalar) => scalar::zero(scalar),
    });
}
