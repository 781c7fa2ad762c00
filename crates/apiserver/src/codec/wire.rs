//! Fields of protobuf messages.

use super::decode::DecodeError;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

/// A field with its number.
pub(super) type Entry<'a> = (u32, Wire<'a>);

/// Reads all fields of a message.
pub(super) fn read(mut bytes: &[u8]) -> Result<Vec<Entry<'_>>, DecodeError> {
    let mut entries = Vec::with_capacity(8);
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let tag = u32::try_from(key >> 3).map_err(|_| DecodeError::Malformed)?;
        let value = match key & 7 {
            0 => Wire::Varint(varint(&mut bytes)?),
            1 => {
                let (value, rest) = bytes.split_first_chunk::<8>().ok_or(DecodeError::Malformed)?;
                bytes = rest;
                Wire::Fixed64(u64::from_le_bytes(*value))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).map_err(|_| DecodeError::Malformed)?;
                let (value, rest) = bytes.split_at_checked(length).ok_or(DecodeError::Malformed)?;
                bytes = rest;
                Wire::Bytes(value)
            }
            5 => {
                let (value, rest) = bytes.split_first_chunk::<4>().ok_or(DecodeError::Malformed)?;
                bytes = rest;
                Wire::Fixed64(u64::from(u32::from_le_bytes(*value)))
            }
            _ => return Err(DecodeError::Malformed),
        };
        entries.push((tag, value));
    }
    Ok(entries)
}

/// Reads a number of variable length.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(DecodeError::Malformed)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::Malformed)
}

pub(super) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a field with a number.
pub(super) fn put_number(tag: u32, value: u64, out: &mut Vec<u8>) {
    put_varint(u64::from(tag) << 3, out);
    put_varint(value, out);
}

/// Writes a field with eight bytes.
pub(super) fn put_fixed64(tag: u32, value: u64, out: &mut Vec<u8>) {
    put_varint(u64::from(tag) << 3 | 1, out);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a field with text, bytes or a message.
pub(super) fn put_bytes(tag: u32, value: &[u8], out: &mut Vec<u8>) {
    put_varint(u64::from(tag) << 3 | 2, out);
    put_varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// The last value of a field, which is the one that counts.
pub(super) fn last<'a>(entries: &[Entry<'a>], tag: u32) -> Option<Wire<'a>> {
    entries.iter().rev().find(|(found, _)| *found == tag).map(|(_, value)| *value)
}

/// The last value of a field with bytes.
pub(super) fn last_bytes<'a>(entries: &[Entry<'a>], tag: u32) -> Option<&'a [u8]> {
    match last(entries, tag) {
        Some(Wire::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}

/// The last value of a field with a number.
pub(super) fn last_number(entries: &[Entry<'_>], tag: u32) -> u64 {
    match last(entries, tag) {
        Some(Wire::Varint(number)) => number,
        _ => 0,
    }
}
