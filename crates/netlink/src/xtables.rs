//! The sizes of legacy xtables tables (`iptables-legacy`), as a cheap check for changed rules.
//!
//! A [`TableInfo`] has the number of entries, the size, and the offset of each hook's chain in a table. Reading it
//! needs neither the rules nor the lock that the `iptables` command takes. Adding or removing a rule changes the
//! `TableInfo`; replacing a rule by one of the same size does not. A request for a table that does not exist would make
//! the kernel load its module and create it (`xt_request_find_table_lock`), so only tables listed in `/proc` are
//! requested. The constants have their names from `linux/netfilter_ipv4/ip_tables.h` and `linux/netfilter/x_tables.h`.
#![expect(unsafe_code, reason = "getsockopt of xtables, which neither std nor rustix offers")]

use crate::{DecodeError, Error, Result};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The same number as `IP6T_SO_GET_INFO`.
const IPT_SO_GET_INFO: i32 = 64;
/// Length of a table name, with the terminating NUL.
const XT_TABLE_MAXNAMELEN: usize = 32;
const NF_INET_NUMHOOKS: usize = 5;
/// Size of `struct ipt_getinfo`: name, valid hooks, entry and underflow of each hook, number of entries, size.
const IPT_GETINFO_LEN: usize = XT_TABLE_MAXNAMELEN + 4 * (1 + 2 * NF_INET_NUMHOOKS + 2);

/// The layout of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Number of entries: rules, chain heads and policies.
    pub entries: u32,
    /// Size of the entries in bytes.
    pub size: u32,
    /// Offset of each hook's chain.
    pub hooks: [u32; NF_INET_NUMHOOKS],
    /// Offset of the policy of each hook's chain.
    pub underflow: [u32; NF_INET_NUMHOOKS],
}

impl TableInfo {
    /// Decodes a `struct ipt_getinfo`.
    pub fn decode(bytes: &[u8]) -> Result<TableInfo, DecodeError> {
        let words =
            bytes.get(XT_TABLE_MAXNAMELEN..IPT_GETINFO_LEN).ok_or(DecodeError::Truncated("table info"))?;
        let word = |i: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|b| words[4 * i + b]));
        Ok(TableInfo {
            hooks: [1, 2, 3, 4, 5].map(word),
            underflow: [6, 7, 8, 9, 10].map(word),
            entries: word(11),
            size: word(12),
        })
    }
}

/// The tables that exist in the network namespace of this thread; empty if the kernel has no legacy xtables.
pub fn tables(v6: bool) -> Vec<String> {
    let file = if v6 { "ip6_tables_names" } else { "ip_tables_names" };
    let names = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

/// The layout of one table in the network namespace of this thread, if it exists.
pub fn info(v6: bool, table: &str) -> Result<Option<TableInfo>> {
    if !tables(v6).iter().any(|t| t == table) {
        return Ok(None);
    }
    InfoSocket::open(v6)?.request(table)
}

/// A socket for repeated requests: one system call for each table that exists.
#[derive(Debug)]
pub struct InfoSocket {
    fd: OwnedFd,
    v6: bool,
    /// Tables that exist, and so may be requested. They exist until their module is unloaded.
    known: Vec<String>,
}

impl InfoSocket {
    /// Opens a socket in the network namespace of this thread; [`InfoSocket::info`] must be called in the same
    /// namespace.
    pub fn open(v6: bool) -> Result<InfoSocket> {
        let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: the call takes no pointers, and its result is checked.
        let raw = unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
        if raw < 0 {
            return Err(Error::Socket { call: "socket(SOCK_RAW)", source: io::Error::last_os_error() });
        }
        // SAFETY: the kernel returned `raw` just now, so it is open, and no other value owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(InfoSocket { fd, v6, known: Vec::new() })
    }

    /// The layout of a table, if it exists.
    pub fn info(&mut self, table: &str) -> Result<Option<TableInfo>> {
        if !self.known.iter().any(|t| t == table) {
            self.known = tables(self.v6);
            if !self.known.iter().any(|t| t == table) {
                return Ok(None);
            }
        }
        let info = self.request(table)?;
        if info.is_none() {
            self.known.retain(|t| t != table);
        }
        Ok(info)
    }

    /// Requests the layout of a table, which must exist: otherwise the kernel would create it.
    fn request(&self, table: &str) -> Result<Option<TableInfo>> {
        if table.len() >= XT_TABLE_MAXNAMELEN {
            return Ok(None);
        }
        let mut buffer = [0u8; IPT_GETINFO_LEN];
        buffer[..table.len()].copy_from_slice(table.as_bytes());
        let mut len = IPT_GETINFO_LEN as u32;
        let level = if self.v6 { libc::SOL_IPV6 } else { libc::SOL_IP };
        // SAFETY: `buffer` and `len` are local variables; the kernel writes at most `len` bytes, the size of `buffer`.
        let done = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                level,
                IPT_SO_GET_INFO,
                buffer.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let operation = || format!("read the layout of table {table}");
        if done == 0 {
            let read = buffer.get(..len as usize).ok_or(DecodeError::Truncated("table info"));
            let info = read.and_then(TableInfo::decode);
            return info.map(Some).map_err(|source| Error::Malformed { operation: operation(), source });
        }
        let source = io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok(None),
            _ => Err(Error::Refused { operation: operation(), source, detail: None }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_decoded_from_its_offset() {
        let mut bytes = vec![b'x'; XT_TABLE_MAXNAMELEN];
        for word in 100..113u32 {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(bytes.len(), IPT_GETINFO_LEN);
        let info = TableInfo {
            hooks: [101, 102, 103, 104, 105],
            underflow: [106, 107, 108, 109, 110],
            entries: 111,
            size: 112,
        };
        assert_eq!(TableInfo::decode(&bytes), Ok(info));
        assert_eq!(
            TableInfo::decode(&bytes[..IPT_GETINFO_LEN - 1]),
            Err(DecodeError::Truncated("table info"))
        );
    }
}
