//! The bytes of a transfer: for each connection and direction, another section of one long random sequence.
//!
//! Two sections differ in their first few bytes, and so does a section from itself after bytes were lost, doubled or
//! moved. A section is not computed again, so every byte can be compared even in an unoptimised build.

use crate::script::{HEADER, LONGEST, Role, Script};
use std::sync::LazyLock;

static RANDOM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x0123_4567_89AB_CDEF;
    (0..2 * LONGEST / 8).flat_map(|_| mix(&mut state).to_le_bytes()).collect()
});

/// The next number of splitmix64.
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// All bytes that one side sends.
pub(crate) struct Payload {
    header: Vec<u8>,
    rest: &'static [u8],
}

impl Payload {
    pub(crate) fn of(script: &Script, role: Role) -> Payload {
        let mut key = script.seed ^ script.number << 1 ^ u64::from(role == Role::Server);
        let header = if role == Role::Client { script.header().to_vec() } else { Vec::new() };
        let length = script.sent_by(role).length - header.len();
        let from = (mix(&mut key) % LONGEST as u64) as usize;
        Payload { rest: &RANDOM[from..from + length], header }
    }

    /// At most `most` bytes from an offset on; empty only at the end.
    pub(crate) fn from(&self, offset: usize, most: usize) -> &[u8] {
        let rest = match offset.checked_sub(self.header.len()) {
            Some(offset) => &self.rest[offset..],
            None => &self.header[offset..],
        };
        &rest[..rest.len().min(most)]
    }

    /// Compares bytes with the payload at an offset; the error is the offset of the first byte that differs.
    pub(crate) fn compare(&self, mut offset: usize, mut bytes: &[u8]) -> Result<(), usize> {
        while !bytes.is_empty() {
            let own = self.from(offset, bytes.len());
            if own.is_empty() || *own != bytes[..own.len()] {
                let differs = own.iter().zip(bytes).take_while(|(a, b)| a == b).count();
                return Err(offset + differs);
            }
            offset += own.len();
            bytes = &bytes[own.len()..];
        }
        Ok(())
    }
}

pub(crate) fn lost_doubled_and_moved_bytes_are_detected() {
    let number = (0..).find(|n| Script::draw(1, *n).up.length > 10_000).unwrap();
    let script = Script::draw(1, number);
    let payload = Payload::of(&script, Role::Client);
    let sent = [payload.from(0, HEADER), payload.from(HEADER, 5000)].concat();
    assert_eq!(payload.compare(0, &sent), Ok(()));
    assert_eq!(payload.compare(3, &sent[3..]), Ok(()));
    assert_eq!(payload.compare(0, &[&sent[..100], &sent[101..]].concat()), Err(100));
    assert_eq!(payload.compare(0, &[&sent[..100], &sent[99..]].concat()), Err(100));
    let all = script.up.length;
    assert_eq!(payload.compare(all, &[0]), Err(all), "a byte after the end");
}
