//! Objects in JSON and in protobuf, by their schema.
//!
//! Objects are stored in protobuf, as kube-apiserver encodes them. JSON is written directly from that, field by field
//! in the order of the schema, so that a list of thousands of objects needs no copy of them as trees.

mod decode;
mod encode;
mod envelope;
mod fields;
mod quantity;
mod scalar;
mod text;
mod wire;

pub use decode::{DecodeError, Printed, decode, print};
pub use encode::{Mismatch, encode};
pub use envelope::{Envelope, MAGIC, unwrap, wrap};
pub use fields::{FieldError, check};

#[cfg(test)]
mod tests;
