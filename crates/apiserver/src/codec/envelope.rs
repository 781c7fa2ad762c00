//! The envelope of a protobuf object: four bytes, and a message with its kind.

use super::decode::DecodeError;
use super::scalar::text;
use super::wire::{last_bytes, put_bytes, read};

/// The bytes with which every object begins.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// An object in its envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// `apiVersion`.
    pub version: &'a str,
    /// `kind`.
    pub kind: &'a str,
    /// The message.
    pub message: &'a [u8],
}

/// Puts a message into an envelope.
pub fn wrap(Envelope { version, kind, message }: Envelope<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(MAGIC);
    let mut names = Vec::with_capacity(version.len() + kind.len() + 4);
    put_bytes(1, version.as_bytes(), &mut names);
    put_bytes(2, kind.as_bytes(), &mut names);
    put_bytes(1, &names, out);
    put_bytes(2, message, out);
    // The encoding and the type of the message: none.
    put_bytes(3, b"", out);
    put_bytes(4, b"", out);
}

/// Takes a message out of its envelope.
pub fn unwrap(bytes: &[u8]) -> Result<Envelope<'_>, DecodeError> {
    let entries = read(bytes.strip_prefix(MAGIC).ok_or(DecodeError::Malformed)?)?;
    let names = read(last_bytes(&entries, 1).unwrap_or_default())?;
    Ok(Envelope {
        version: text(last_bytes(&names, 1).unwrap_or_default())?,
        kind: text(last_bytes(&names, 2).unwrap_or_default())?,
        message: last_bytes(&entries, 2).unwrap_or_default(),
    })
}
