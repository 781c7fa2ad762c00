//! Sets of the `ipset` command (`linux/netfilter/ipset/ip_set.h`).
//!
//! [`Ipset`] creates sets from [`NewSet`]s, applies [`SetChange`]s, and lists [`SetInfo`]s and [`Member`]s. Every
//! request contains the protocol version, so [`Ipset::open`] asks the kernel for its versions; the answer also shows
//! whether the kernel supports sets at all. The subsystem has private errnos (`IPSET_ERR_*`), for which this module has
//! texts.

mod change;
mod member;
mod set;
#[cfg(test)]
mod tests;
mod wire;

pub use change::SetChange;
pub use member::{Member, decode_members};
pub use set::{NewSet, SetInfo, SetKind};

use crate::message::{Attrs, Buffer, Message, NLM_F_EXCL};
use crate::{DecodeError, Error, Protocol, Result, Socket};
use wire::*;

/// The protocol versions that Portway supports (`IPSET_PROTOCOL_MIN`, `IPSET_PROTOCOL`). The requests that it uses are
/// the same in both.
const OLDEST_VERSION: u8 = 6;
const NEWEST_VERSION: u8 = 7;

/// A socket for the sets of one network namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Ipset {
    socket: Socket,
    version: u8,
}

impl Ipset {
    /// Opens a socket; `None` if the kernel has no sets.
    pub fn open() -> Result<Option<Ipset>> {
        let mut socket = match Socket::open(Protocol::Netfilter) {
            Err(e) if is_absent(&e) => return Ok(None),
            socket => socket?,
        };
        Ok(version(&mut socket)?.map(|version| Ipset { socket, version }))
    }

    /// The number of messages sent so far.
    pub fn sent(&self) -> u64 {
        self.socket.sent()
    }

    /// All sets of the namespace, without their members.
    pub fn names(&mut self) -> Result<Vec<SetInfo>> {
        let mut sets = Vec::new();
        let version = self.version;
        let fill = |b: &mut Buffer| {
            begin(b, version);
            b.attr_be32(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_HEADER);
        };
        let each = |sets: &mut Vec<SetInfo>, m: Message<'_>| {
            sets.push(SetInfo::decode(body(&m)?)?);
            Ok(())
        };
        self.socket.dump(IPSET_CMD_LIST, "list sets", &mut sets, fill, Vec::clear, each).map_err(explain)?;
        Ok(sets)
    }

    /// The members of a set, in no order. A set that does not exist is an error ([`Error::is_not_found`]).
    pub fn members(&mut self, name: &str) -> Result<Vec<Member>> {
        let operation = format!("list the members of set {name}");
        let mut members = Vec::new();
        let version = self.version;
        let fill = |b: &mut Buffer| {
            begin(b, version);
            b.attr_str(IPSET_ATTR_SETNAME, name);
        };
        let each = |members: &mut Vec<Member>, m: Message<'_>| decode_members(body(&m)?, members);
        self.socket
            .dump(IPSET_CMD_LIST, &operation, &mut members, fill, Vec::clear, each)
            .map_err(explain)?;
        Ok(members)
    }

    /// Creates a set; false if a set of that name exists, whether it [fits](SetInfo::fits) or not.
    pub fn create(&mut self, new: &NewSet) -> Result<bool> {
        let revision = self.revision(new)?;
        let operation = format!("create set {} of type {}", new.name, new.kind.name());
        let version = self.version;
        // Without NLM_F_EXCL the kernel reports success if an identical set exists.
        let result = self.socket.request(IPSET_CMD_CREATE, NLM_F_EXCL, &operation, |b| {
            begin(b, version);
            new.encode(revision, b);
        });
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.is_exists() => Ok(false),
            Err(e) => Err(explain(e)),
        }
    }

    /// The revision of the set type with which the set is created. The kernel loads the type's module if necessary.
    fn revision(&mut self, new: &NewSet) -> Result<u8> {
        let operation = format!("look up sets of type {}", new.kind.name());
        let version = self.version;
        let fill = |b: &mut Buffer| {
            begin(b, version);
            new.encode_type(b);
        };
        let supported =
            self.socket.query(IPSET_CMD_TYPE, &operation, fill, |m| set::decode_revisions(body(m)?));
        let (oldest, newest) = supported.map_err(explain)?;
        let known = new.kind.newest_revision();
        if oldest > known {
            let source = DecodeError::Unknown { field: "oldest type revision", value: oldest.into() };
            return Err(Error::Malformed { operation, source });
        }
        Ok(newest.min(known))
    }

    /// Destroys a set with its members; false if there is no set of that name. The kernel refuses to destroy a set that
    /// a rule or another set refers to.
    pub fn destroy(&mut self, name: &str) -> Result<bool> {
        self.request_by_name(IPSET_CMD_DESTROY, "destroy", name)
    }

    /// Removes all members of a set; false if there is no set of that name.
    pub fn flush(&mut self, name: &str) -> Result<bool> {
        self.request_by_name(IPSET_CMD_FLUSH, "flush", name)
    }

    /// A request with a set's name as its only attribute. The name is always present: without it the kernel would apply
    /// the request to all sets.
    fn request_by_name(&mut self, command: u16, verb: &str, name: &str) -> Result<bool> {
        let version = self.version;
        // Without NLM_F_EXCL the kernel reports success if there is no such set, as for `ipset -exist`.
        let result = self.socket.request(command, NLM_F_EXCL, &format!("{verb} set {name}"), |b| {
            begin(b, version);
            b.attr_str(IPSET_ATTR_SETNAME, name);
        });
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(explain(e)),
        }
    }
}

/// The newest protocol version that both the kernel and Portway support; `None` if the kernel has no sets.
fn version(socket: &mut Socket) -> Result<Option<u8>> {
    let operation = "agree on a version of the ipset protocol";
    let supported = socket.query(
        IPSET_CMD_PROTOCOL,
        operation,
        |b| begin(b, NEWEST_VERSION),
        |m| decode_versions(body(m)?),
    );
    match supported {
        Ok((oldest, newest)) if oldest <= NEWEST_VERSION && newest >= OLDEST_VERSION => {
            Ok(Some(newest.min(NEWEST_VERSION)))
        }
        Ok((_, newest)) => Err(Error::Malformed {
            operation: operation.into(),
            source: DecodeError::Unknown { field: "protocol version", value: newest.into() },
        }),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(explain(e)),
    }
}

/// Whether the error means that the kernel has no sets: `nfnetlink` answers `EINVAL` for a missing subsystem, and a
/// kernel without `nfnetlink` has no such socket (`EPROTONOSUPPORT`). Containers and old kernels return the other
/// errnos.
fn is_absent(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EINVAL | libc::ENOENT | libc::EPROTONOSUPPORT | libc::EOPNOTSUPP))
}

/// The oldest and the newest version that the kernel supports. Old kernels report only one.
fn decode_versions(body: Attrs<'_>) -> Result<(u8, u8), DecodeError> {
    let newest = body.clone().need(IPSET_ATTR_PROTOCOL, "protocol version")?.u8("protocol version")?;
    let oldest =
        body.find(IPSET_ATTR_PROTOCOL_MIN).map_or(Ok(newest), |a| a.u8("oldest protocol version"))?;
    Ok((oldest, newest))
}
