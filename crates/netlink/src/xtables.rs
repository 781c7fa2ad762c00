//! A cheap look at legacy xtables (`iptables-legacy`): have the rules changed since the last one?
//!
//! In goes the name of a table, out comes its shape ([`TableInfo`]: how many entries, how large, where each hook
//! begins), without the rules themselves and without the lock that the `iptables` command takes. Whoever adds or
//! removes a rule changes the shape; a rule exchanged for one of the same size does not, and is not noticed. Looking
//! never makes a table: the kernel would load its module and put it into the packets' way as soon as it is asked
//! about it (`xt_request_find_table_lock`), so only tables that are listed already are asked about.
#![expect(unsafe_code, reason = "getsockopt of xtables, which neither std nor rustix offers")]

use crate::{Error, Malformed, Result};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `IPT_SO_GET_INFO` and `IP6T_SO_GET_INFO`.
const GET_INFO: i32 = 64;
/// `XT_TABLE_MAXNAMELEN`, with the closing NUL.
const NAME: usize = 32;
/// `struct ipt_getinfo`: name, valid hooks, five entries, five underflows, number of entries, size.
const INFO: usize = NAME + 4 * (1 + 5 + 5 + 2);

/// The shape of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// How many rules and chain heads it has.
    pub entries: u32,
    /// How many bytes they take.
    pub size: u32,
    /// Where the chain of each hook begins.
    pub hooks: [u32; 5],
    /// Where the policy of each hook's chain is.
    pub underflow: [u32; 5],
}

impl TableInfo {
    /// Reads a `struct ipt_getinfo`.
    pub fn decode(bytes: &[u8]) -> Result<TableInfo, Malformed> {
        let words = bytes.get(NAME..INFO).ok_or(Malformed::Short("table info"))?;
        let word = |i: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|b| words[4 * i + b]));
        Ok(TableInfo {
            hooks: [1, 2, 3, 4, 5].map(word),
            underflow: [6, 7, 8, 9, 10].map(word),
            entries: word(11),
            size: word(12),
        })
    }
}

/// The tables that exist in the network namespace of this thread. None where the kernel has no legacy xtables.
pub fn tables(v6: bool) -> Vec<String> {
    let file = if v6 { "ip6_tables_names" } else { "ip_tables_names" };
    let names = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

/// The shape of one table in the network namespace of this thread, if it exists.
pub fn info(v6: bool, table: &str) -> Result<Option<TableInfo>> {
    if !tables(v6).iter().any(|t| t == table) {
        return Ok(None);
    }
    Watch::open(v6)?.ask(table)
}

/// A look that is repeated: one system call for each table that exists.
#[derive(Debug)]
pub struct Watch {
    fd: OwnedFd,
    v6: bool,
    /// Tables that exist and so may be asked about. They stay, unless somebody unloads their module.
    known: Vec<String>,
}

impl Watch {
    /// Opens it for the network namespace of this thread; looks must come from a thread in the same one.
    pub fn open(v6: bool) -> Result<Watch> {
        let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: no pointers are handed over; the result is checked.
        let raw = unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
        if raw < 0 {
            return Err(Error::Socket { what: "socket for xtables", source: io::Error::last_os_error() });
        }
        // SAFETY: `raw` is a descriptor that the kernel just gave us and nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Watch { fd, v6, known: Vec::new() })
    }

    /// The shape of a table, if it exists.
    pub fn info(&mut self, table: &str) -> Result<Option<TableInfo>> {
        if !self.known.iter().any(|t| t == table) {
            self.known = tables(self.v6);
            if !self.known.iter().any(|t| t == table) {
                return Ok(None);
            }
        }
        let info = self.ask(table)?;
        if info.is_none() {
            self.known.retain(|t| t != table);
        }
        Ok(info)
    }

    /// Asks the kernel about a table, which must exist: else it would from now on.
    fn ask(&self, table: &str) -> Result<Option<TableInfo>> {
        if table.len() >= NAME {
            return Ok(None);
        }
        let mut buffer = [0u8; INFO];
        buffer[..table.len()].copy_from_slice(table.as_bytes());
        let mut len = INFO as u32;
        let level = if self.v6 { libc::SOL_IPV6 } else { libc::SOL_IP };
        // SAFETY: `buffer` and `len` live on our stack; the kernel writes at most `len` bytes.
        let done = unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), level, GET_INFO, buffer.as_mut_ptr().cast(), &raw mut len)
        };
        let operation = || format!("tell the shape of table {table}");
        if done == 0 {
            let read = buffer.get(..len as usize).ok_or(Malformed::Short("table info"));
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
    fn every_field_is_read_from_its_place() {
        let mut bytes = vec![b'x'; NAME];
        for word in 100..113u32 {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(bytes.len(), INFO);
        let info = TableInfo {
            hooks: [101, 102, 103, 104, 105],
            underflow: [106, 107, 108, 109, 110],
            entries: 111,
            size: 112,
        };
        assert_eq!(TableInfo::decode(&bytes), Ok(info));
        assert_eq!(TableInfo::decode(&bytes[..INFO - 1]), Err(Malformed::Short("table info")));
    }
}
