//! Generated parts of names. They are computed, not random: a second attempt at a creation whose answer was lost finds
//! the object instead of creating another one.

use sha2::{Digest, Sha256};

/// Characters of generated names: no vowels, so that no words come out.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Generated characters at the end of a name, as many as an API server appends to `generateName`.
const SUFFIX: usize = 5;
/// The longest name that has a generated part.
const MAX_NAME: usize = 63;

/// Generated characters, 32 at most, from parts.
pub(crate) fn text(parts: &[&[u8]], length: usize) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let letter = |byte: u8| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]);
    hash.finalize().into_iter().take(length).map(letter).collect()
}

/// The generated names of a prefix in their order, which does not depend on which of them are taken.
pub(crate) struct Names<'a> {
    prefix: &'a str,
    parts: Vec<&'a [u8]>,
    next: u32,
}

impl<'a> Names<'a> {
    /// The names with this prefix that are computed from these parts.
    pub(crate) fn new(prefix: &'a str, parts: &[&'a [u8]]) -> Names<'a> {
        let end = prefix.floor_char_boundary(MAX_NAME - SUFFIX);
        Names { prefix: &prefix[..end], parts: parts.to_vec(), next: 0 }
    }

    /// The next name that is not taken.
    pub(crate) fn next_free(&mut self, is_taken: impl Fn(&str) -> bool) -> String {
        loop {
            let number = self.next.to_be_bytes();
            self.next += 1;
            let mut parts = self.parts.clone();
            parts.push(&number);
            let name = format!("{}{}", self.prefix, text(&parts, SUFFIX));
            if !is_taken(&name) {
                return name;
            }
        }
    }
}

/// The first generated name with this prefix that is not taken.
pub(crate) fn name(prefix: &str, parts: &[&[u8]], is_taken: impl Fn(&str) -> bool) -> String {
    Names::new(prefix, parts).next_free(is_taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_computed_and_skip_those_that_are_taken() {
        let first = name("web-", &[b"uid"], |_| false);
        assert_eq!(first, name("web-", &[b"uid"], |_| false));
        assert_eq!(first.len(), "web-".len() + SUFFIX);
        let second = name("web-", &[b"uid"], |name| name == first);
        assert_ne!(first, second);
        assert_ne!(first, name("web-", &[b"other"], |_| false));
        let long = name(&"x".repeat(200), &[b"uid"], |_| false);
        assert_eq!(long.len(), MAX_NAME);
    }
}
