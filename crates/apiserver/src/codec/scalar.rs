//! Values with a form of their own in one of the formats: times, quantities, numbers or names.

use super::decode::DecodeError;
use super::quantity;
use super::text::put_string;
use super::wire::{Entry, Wire, last_bytes, last_number, put_bytes, put_number, read};
use crate::schema::Scalar;
use data_encoding::{BASE64, Encoding, Specification};
use portway_api::time::{format_rfc3339, parse_rfc3339};
use serde_json::Value;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

/// Base64 as clients write it: with line ends, and with bits after the last byte.
static LENIENT_BASE64: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification: Specification = BASE64.specification();
    specification.ignore.push_str("\r\n");
    specification.check_trailing_bits = false;
    specification.encoding().unwrap_or(BASE64)
});

/// Times that have a form in JSON: the years 1 to 9999.
const TIMES: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Values within values of a tree of field names at most.
const MAX_TREE_DEPTH: usize = 60;

/// Whether a value is an object that is not nested too deeply.
fn is_tree(value: &Value) -> bool {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    value.is_object() && depth(value) <= MAX_TREE_DEPTH
}

/// Writes a value of a field as protobuf. `None` if the value is of another type.
pub(super) fn encode(scalar: Scalar, tag: u32, value: &Value, out: &mut Vec<u8>) -> Option<()> {
    match scalar {
        Scalar::String => put_bytes(tag, value.as_str()?.as_bytes(), out),
        Scalar::Bool => put_number(tag, u64::from(value.as_bool()?), out),
        Scalar::Int32 => put_number(tag, i64::from(i32::try_from(value.as_i64()?).ok()?) as u64, out),
        Scalar::Int64 => put_number(tag, value.as_i64()? as u64, out),
        Scalar::Double => super::wire::put_fixed64(tag, value.as_f64()?.to_bits(), out),
        Scalar::Bytes => put_bytes(tag, &LENIENT_BASE64.decode(value.as_str()?.as_bytes()).ok()?, out),
        Scalar::Time | Scalar::MicroTime => {
            let (seconds, nanos) = parse_rfc3339(value.as_str()?).filter(|(s, _)| TIMES.contains(s))?;
            let nanos = if scalar == Scalar::Time { 0 } else { nanos / 1000 * 1000 };
            let mut message = Vec::with_capacity(14);
            put_number(1, seconds as u64, &mut message);
            put_number(2, u64::from(nanos), &mut message);
            put_bytes(tag, &message, out);
        }
        Scalar::Quantity => {
            let text = match value {
                Value::String(text) => quantity::canonical(text)?,
                Value::Number(number) => quantity::canonical(&number.to_string())?,
                _ => return None,
            };
            put_message(tag, |message| put_bytes(1, text.as_bytes(), message), out);
        }
        Scalar::IntOrString => {
            let (kind, number, name) = match value {
                Value::String(name) => (1, 0, name.as_str()),
                value => (0, i32::try_from(value.as_i64()?).ok()?, ""),
            };
            let write = |message: &mut Vec<u8>| {
                put_number(1, kind, message);
                put_number(2, i64::from(number) as u64, message);
                put_bytes(3, name.as_bytes(), message);
            };
            put_message(tag, write, out);
        }
        Scalar::FieldsV1 | Scalar::RawExtension => {
            let text = is_tree(value).then(|| value.to_string())?;
            put_message(tag, |message| put_bytes(1, text.as_bytes(), message), out);
        }
        Scalar::Texts => {
            let texts: Option<Vec<&str>> = value.as_array()?.iter().map(Value::as_str).collect();
            let texts = texts?;
            let write =
                |message: &mut Vec<u8>| texts.iter().for_each(|t| put_bytes(1, t.as_bytes(), message));
            put_message(tag, write, out);
        }
        Scalar::Duration | Scalar::Message(_) => return None,
    }
    Some(())
}

/// Writes the zero of a value that is always there in protobuf.
pub(super) fn encode_zero(scalar: Scalar, tag: u32, out: &mut Vec<u8>) {
    match scalar {
        Scalar::String => put_bytes(tag, b"", out),
        Scalar::Bool | Scalar::Int32 | Scalar::Int64 | Scalar::Duration => put_number(tag, 0, out),
        Scalar::Double => super::wire::put_fixed64(tag, 0, out),
        Scalar::Time | Scalar::MicroTime | Scalar::FieldsV1 | Scalar::RawExtension => {
            put_bytes(tag, b"", out);
        }
        Scalar::Quantity => put_message(tag, |message| put_bytes(1, b"0", message), out),
        Scalar::IntOrString => _ = encode(scalar, tag, &Value::from(0), out),
        Scalar::Bytes | Scalar::Texts | Scalar::Message(_) => {}
    }
}

fn put_message(tag: u32, write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    let mut message = Vec::new();
    write(&mut message);
    put_bytes(tag, &message, out);
}

/// Writes a value as JSON. False, and nothing written, if it is zero in a way that JSON has no value for.
pub(super) fn print(scalar: Scalar, value: Wire<'_>, out: &mut Vec<u8>) -> Result<bool, DecodeError> {
    match (scalar, value) {
        (Scalar::String, Wire::Bytes(bytes)) => put_string(text(bytes)?, out),
        (Scalar::Bool, Wire::Varint(number)) => {
            out.extend_from_slice(if number == 0 { b"false" } else { b"true" });
        }
        (Scalar::Int32, Wire::Varint(number)) => put_display(number as i32, out),
        (Scalar::Int64, Wire::Varint(number)) => put_display(number as i64, out),
        (Scalar::Double, Wire::Fixed64(bits)) => {
            let number = serde_json::Number::from_f64(f64::from_bits(bits)).ok_or(DecodeError::Malformed)?;
            put_display(number, out);
        }
        (Scalar::Bytes, Wire::Bytes(bytes)) => put_string(&BASE64.encode(bytes), out),
        (Scalar::Time | Scalar::MicroTime, Wire::Bytes([])) => return Ok(false),
        (Scalar::Time, Wire::Bytes(bytes)) => {
            put_string(&format_rfc3339(seconds(&read(bytes)?)?), out);
        }
        (Scalar::MicroTime, Wire::Bytes(bytes)) => {
            let entries = read(bytes)?;
            let seconds = format_rfc3339(seconds(&entries)?);
            let micros = last_number(&entries, 2) as u32 / 1000;
            put_string(&format!("{}.{micros:06}Z", seconds.trim_end_matches('Z')), out);
        }
        (Scalar::Quantity, Wire::Bytes(bytes)) => {
            put_string(text(last_bytes(&read(bytes)?, 1).unwrap_or(b"0"))?, out);
        }
        (Scalar::IntOrString, Wire::Bytes(bytes)) => {
            let entries = read(bytes)?;
            match last_number(&entries, 1) {
                0 => put_display(last_number(&entries, 2) as i32, out),
                _ => put_string(text(last_bytes(&entries, 3).unwrap_or_default())?, out),
            }
        }
        (Scalar::FieldsV1 | Scalar::RawExtension, Wire::Bytes(bytes)) => {
            match last_bytes(&read(bytes)?, 1) {
                None | Some([]) => return Ok(false),
                // It is printed as it is, so it has to be JSON.
                Some(json) => {
                    let value: Value = serde_json::from_slice(json).map_err(|_| DecodeError::Malformed)?;
                    if !is_tree(&value) {
                        return Err(DecodeError::Malformed);
                    }
                    out.extend_from_slice(value.to_string().as_bytes());
                }
            }
        }
        (Scalar::Texts, Wire::Bytes(bytes)) => {
            out.push(b'[');
            for (index, (_, value)) in read(bytes)?.into_iter().filter(|(tag, _)| *tag == 1).enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                print(Scalar::String, value, out)?;
            }
            out.push(b']');
        }
        _ => return Err(DecodeError::Malformed),
    }
    Ok(true)
}

/// The seconds of a time that has a form in JSON.
fn seconds(entries: &[Entry<'_>]) -> Result<i64, DecodeError> {
    let seconds = last_number(entries, 1) as i64;
    if TIMES.contains(&seconds) { Ok(seconds) } else { Err(DecodeError::Malformed) }
}

/// The JSON of a value that is printed although it is zero.
pub(super) fn zero(scalar: Scalar) -> &'static [u8] {
    match scalar {
        Scalar::String => b"\"\"",
        Scalar::Bool => b"false",
        Scalar::Int32 | Scalar::Int64 | Scalar::Double | Scalar::IntOrString | Scalar::Duration => b"0",
        Scalar::Quantity => b"\"0\"",
        _ => b"null",
    }
}

/// Whether a value is the zero of its type.
pub(super) fn is_zero(scalar: Scalar, value: Wire<'_>) -> bool {
    match value {
        Wire::Varint(number) | Wire::Fixed64(number) => number == 0,
        Wire::Bytes(bytes) => match scalar {
            Scalar::String | Scalar::Bytes | Scalar::Time | Scalar::MicroTime => bytes.is_empty(),
            _ => false,
        },
    }
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::Malformed)
}

fn put_display(value: impl std::fmt::Display, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    _ = std::io::Write::write_fmt(out, format_args!("{value}"));
}
