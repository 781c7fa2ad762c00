//! What is said: for each connection and direction another stretch of one long random sequence.
//!
//! A stretch is told from every other one by its first few bytes, and from itself when bytes are lost, doubled or moved. It
//! costs nothing to make again, so every byte can be compared even where nothing is optimised.

use crate::script::{HEADER, LONGEST, Role, Script};
use std::sync::LazyLock;

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x0123_4567_89AB_CDEF;
    (0..2 * LONGEST / 8).flat_map(|_| mix(&mut state).to_le_bytes()).collect()
});

/// The next of a sequence of numbers (splitmix64).
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// All that one end has to say.
pub(crate) struct Speech {
    header: Vec<u8>,
    rest: &'static [u8],
}

impl Speech {
    pub(crate) fn of(script: &Script, role: Role) -> Speech {
        let mut key = script.seed ^ script.number << 1 ^ u64::from(role == Role::Server);
        let header = if role == Role::Client { script.header().to_vec() } else { Vec::new() };
        let length = script.sent_by(role).length - header.len();
        let from = (mix(&mut key) % LONGEST as u64) as usize;
        Speech { rest: &NOISE[from..from + length], header }
    }

    /// A part of it from a place on, not empty unless it ends there.
    pub(crate) fn from(&self, place: usize, most: usize) -> &[u8] {
        let rest = match place.checked_sub(self.header.len()) {
            Some(place) => &self.rest[place..],
            None => &self.header[place..],
        };
        &rest[..rest.len().min(most)]
    }

    /// Whether these are its bytes at a place; if not, where the first one is that differs.
    pub(crate) fn compare(&self, mut place: usize, mut bytes: &[u8]) -> Result<(), usize> {
        while !bytes.is_empty() {
            let own = self.from(place, bytes.len());
            if own.is_empty() || *own != bytes[..own.len()] {
                let differs = own.iter().zip(bytes).take_while(|(a, b)| a == b).count();
                return Err(place + differs);
            }
            place += own.len();
            bytes = &bytes[own.len()..];
        }
        Ok(())
    }
}

pub(crate) fn what_is_lost_doubled_or_moved_is_noticed() {
    let number = (0..).find(|n| Script::draw(1, *n).up.length > 10_000).unwrap();
    let script = Script::draw(1, number);
    let speech = Speech::of(&script, Role::Client);
    let said = [speech.from(0, HEADER), speech.from(HEADER, 5000)].concat();
    assert_eq!(speech.compare(0, &said), Ok(()));
    assert_eq!(speech.compare(3, &said[3..]), Ok(()));
    assert_eq!(speech.compare(0, &[&said[..100], &said[101..]].concat()), Err(100));
    assert_eq!(speech.compare(0, &[&said[..100], &said[99..]].concat()), Err(100));
    let all = script.up.length;
    assert_eq!(speech.compare(all, &[0]), Err(all), "more than everything");
}
