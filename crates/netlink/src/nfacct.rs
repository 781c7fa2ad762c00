//! Named counters of packets and bytes, which iptables rules increment (`-m nfacct`).
//!
//! A counter has a name of up to 31 bytes, and can be created, read and deleted. A kernel without the subsystem refuses
//! every request with `EINVAL`. The constants have their names from
//! `linux/netfilter/nfnetlink_acct.h`.

use crate::message::{Attrs, Buffer, NLM_F_CREATE, NLM_F_EXCL, attrs};
use crate::{DecodeError, Result, Socket};

const NFNL_SUBSYS_ACCT: u16 = 7;
const NFNL_MSG_ACCT_NEW: u16 = NFNL_SUBSYS_ACCT << 8;
const NFNL_MSG_ACCT_GET: u16 = NFNL_SUBSYS_ACCT << 8 | 1;
const NFNL_MSG_ACCT_DEL: u16 = NFNL_SUBSYS_ACCT << 8 | 3;

const NFACCT_NAME: u16 = 1;
const NFACCT_PKTS: u16 = 2;
const NFACCT_BYTES: u16 = 3;

/// `struct nfgenmsg`: family, version, resource id.
const NFGENMSG: [u8; 4] = [libc::AF_UNSPEC as u8, 0, 0, 0];

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name.
    pub name: String,
    /// Packets counted.
    pub packets: u64,
    /// Bytes in these packets.
    pub bytes: u64,
}

/// Creates a counter with the value 0; false if it exists, in which case its value does not change.
pub fn create(socket: &mut Socket, name: &str) -> Result<bool> {
    let operation = format!("create counter {name}");
    let created = socket.request(NFNL_MSG_ACCT_NEW, NLM_F_CREATE | NLM_F_EXCL, &operation, |b| fill(b, name));
    match created {
        Ok(()) => Ok(true),
        Err(e) if e.is_exists() => Ok(false),
        Err(e) => Err(e),
    }
}

/// The packet count of a counter; `None` if there is no such counter.
pub fn packets(socket: &mut Socket, name: &str) -> Result<Option<u64>> {
    let operation = format!("read counter {name}");
    let counter = socket.query(
        NFNL_MSG_ACCT_GET,
        &operation,
        |b| fill(b, name),
        |m| decode(attrs(m.body.get(NFGENMSG.len()..).ok_or(DecodeError::Truncated("counter"))?)),
    );
    match counter {
        Ok(counter) => Ok(Some(counter.packets)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Deletes a counter; false if there is none of that name. The kernel refuses to delete a counter that a rule uses
/// (`EBUSY`).
pub fn delete(socket: &mut Socket, name: &str) -> Result<bool> {
    let deleted = socket.request(NFNL_MSG_ACCT_DEL, 0, &format!("delete counter {name}"), |b| fill(b, name));
    match deleted {
        Ok(()) => Ok(true),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(e),
    }
}

/// The body of a request. It always has a name: without one the kernel would delete all counters.
fn fill(b: &mut Buffer, name: &str) {
    b.raw(&NFGENMSG);
    b.attr_str(NFACCT_NAME, name);
}

/// Decodes a counter.
pub fn decode(body: Attrs<'_>) -> Result<Counter, DecodeError> {
    Ok(Counter {
        name: body.clone().need(NFACCT_NAME, "counter's name")?.str("counter's name")?.to_owned(),
        packets: body.clone().need(NFACCT_PKTS, "packets")?.be64("packets")?,
        bytes: body.need(NFACCT_BYTES, "bytes")?.be64("bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_decodes_and_one_without_bytes_does_not() {
        let mut b = Buffer::default();
        fill(&mut b, "ct_state_invalid");
        b.attr_be64(NFACCT_PKTS, 1 << 40);
        let short = b.bytes().len();
        b.attr_be64(NFACCT_BYTES, 7);
        let body = &b.bytes()[NFGENMSG.len()..];
        let counter = Counter { name: "ct_state_invalid".into(), packets: 1 << 40, bytes: 7 };
        assert_eq!(decode(attrs(body)), Ok(counter));
        assert_eq!(decode(attrs(&b.bytes()[NFGENMSG.len()..short])), Err(DecodeError::Missing("bytes")));
    }
}
