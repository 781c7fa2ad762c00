//! Objects in protobuf: bytes that are printed as JSON are encoded to a message that prints the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_apiserver::codec::{Printed, decode, encode, unwrap};
use portway_apiserver::schema::{self, TypeId};
use std::sync::LazyLock;

static TYPES: LazyLock<Vec<TypeId>> = LazyLock::new(|| schema::all().collect());

fuzz_target!(|input: (u16, &[u8])| {
    let (number, bytes) = input;
    _ = unwrap(bytes);
    let ty = TYPES[usize::from(number) % TYPES.len()];
    let Ok(object) = decode(ty, bytes, Printed::default()) else { return };
    let encoded = encode(ty, &object).unwrap_or_else(|error| panic!("{object}: {error}"));
    let again = decode(ty, &encoded, Printed::default());
    assert_eq!(again.as_ref(), Ok(&object));
});
