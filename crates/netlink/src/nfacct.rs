//! Named counters of packets and bytes (`nfnetlink_acct`), which rules in iptables count into (`-m nfacct`).
//!
//! In goes a counter's name, of up to 31 bytes; out comes whether it was made or removed, or how much it has
//! counted. A kernel without the subsystem refuses all of it with `EINVAL`.

use crate::message::{Attrs, Buffer, CREATE, EXCLUSIVE, attrs};
use crate::{Malformed, Result, Socket};

const SUBSYSTEM: u16 = 7 << 8;
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 3;

const NAME: u16 = 1;
const PACKETS: u16 = 2;
const BYTES: u16 = 3;

/// `struct nfgenmsg` of no family.
const HEADER: [u8; 4] = [0; 4];

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name.
    pub name: String,
    /// Packets counted.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Makes a counter that starts at zero; false if there is one of that name, which then counts on.
pub fn create(socket: &mut Socket, name: &str) -> Result<bool> {
    let operation = format!("make counter {name}");
    let made = socket.request(NEW, CREATE | EXCLUSIVE, &operation, |b| fill(b, name));
    match made {
        Ok(()) => Ok(true),
        Err(e) if e.is_exists() => Ok(false),
        Err(e) => Err(e),
    }
}

/// How many packets a counter has counted; `None` if there is no such counter.
pub fn packets(socket: &mut Socket, name: &str) -> Result<Option<u64>> {
    let operation = format!("read counter {name}");
    let counter = socket.ask(
        GET,
        &operation,
        |b| fill(b, name),
        |m| decode(attrs(m.body.get(4..).ok_or(Malformed::Short("counter"))?)),
    );
    match counter {
        Ok(counter) => Ok(Some(counter.packets)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Removes a counter; false if there is none of that name. One that a rule counts into is refused (`EBUSY`).
pub fn delete(socket: &mut Socket, name: &str) -> Result<bool> {
    let gone = socket.request(DELETE, 0, &format!("delete counter {name}"), |b| fill(b, name));
    match gone {
        Ok(()) => Ok(true),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(e),
    }
}

/// Always names a counter: without a name the kernel would delete them all.
fn fill(b: &mut Buffer, name: &str) {
    b.raw(&HEADER);
    b.attr_str(NAME, name);
}

/// Reads a counter.
pub fn decode(body: Attrs<'_>) -> Result<Counter, Malformed> {
    Ok(Counter {
        name: body.clone().need(NAME, "counter's name")?.str("counter's name")?.to_owned(),
        packets: body.clone().need(PACKETS, "packets")?.be64("packets")?,
        bytes: body.need(BYTES, "bytes")?.be64("bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_reads_back_and_one_with_a_part_missing_does_not() {
        let mut b = Buffer::default();
        fill(&mut b, "ct_state_invalid");
        b.attr_be64(PACKETS, 1 << 40);
        let short = b.bytes().len();
        b.attr_be64(BYTES, 7);
        let body = &b.bytes()[HEADER.len()..];
        let counter = Counter { name: "ct_state_invalid".into(), packets: 1 << 40, bytes: 7 };
        assert_eq!(decode(attrs(body)), Ok(counter));
        assert_eq!(decode(attrs(&b.bytes()[HEADER.len()..short])), Err(Malformed::Missing("bytes")));
    }
}
