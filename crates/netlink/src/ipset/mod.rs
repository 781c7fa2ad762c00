//! Sets of the `ipset` command (`linux/netfilter/ipset/ip_set.h`).
//!
//! In go [`NewSet`]s and [`SetChange`]s, values that say what is to be there; out come [`SetInfo`]s and [`Member`]s as
//! the kernel lists them. Every request says which version of the protocol it speaks, so [`Ipset::open`] asks the
//! kernel once; that answer also tells whether the kernel has sets at all. The subsystem has errors of its own above
//! the system's (4096 and up); they get words here, since the C library has none for them.

mod change;
mod member;
mod set;
#[cfg(test)]
mod tests;
mod wire;

pub use change::SetChange;
pub use member::{Member, decode_members};
pub use set::{NewSet, SetInfo, SetKind};

use crate::message::{Attrs, Buffer, EXCLUSIVE, Message};
use crate::{Error, Malformed, Protocol, Result, Socket};
use wire::{
    CMD_CREATE, CMD_DESTROY, CMD_FLUSH, CMD_LIST, CMD_PROTOCOL, CMD_TYPE, FLAGS, PROTOCOL, PROTOCOL_MIN,
    SET_NAME, begin, body, explain,
};

/// Versions of the protocol that we speak; what we use of them is the same in both.
const OLDEST: u8 = 6;
const NEWEST: u8 = 7;
/// List no members.
const FLAG_HEADER: u32 = 1 << 2;

/// A conversation with the kernel about the sets of one namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Ipset {
    socket: Socket,
    version: u8,
}

impl Ipset {
    /// Opens it; `None` if the kernel has no sets.
    pub fn open() -> Result<Option<Ipset>> {
        let mut socket = match Socket::open(Protocol::Netfilter) {
            Err(e) if is_absent(&e) => return Ok(None),
            socket => socket?,
        };
        Ok(version(&mut socket)?.map(|version| Ipset { socket, version }))
    }

    /// How many messages it has sent so far.
    pub fn sent(&self) -> u64 {
        self.socket.sent()
    }

    /// All sets of the namespace.
    pub fn names(&mut self) -> Result<Vec<SetInfo>> {
        let mut sets = Vec::new();
        let version = self.version;
        let fill = |b: &mut Buffer| {
            begin(b, version);
            b.attr_be32(FLAGS, FLAG_HEADER);
        };
        let each = |sets: &mut Vec<SetInfo>, m: Message<'_>| {
            sets.push(SetInfo::decode(body(&m)?)?);
            Ok(())
        };
        self.socket.dump(CMD_LIST, "list sets", &mut sets, fill, Vec::clear, each).map_err(explain)?;
        Ok(sets)
    }

    /// The members of a set, in no order. A set that does not exist is an error ([`Error::is_not_found`]).
    pub fn members(&mut self, name: &str) -> Result<Vec<Member>> {
        let operation = format!("list the members of set {name}");
        let mut members = Vec::new();
        let version = self.version;
        let fill = |b: &mut Buffer| {
            begin(b, version);
            b.attr_str(SET_NAME, name);
        };
        let each = |members: &mut Vec<Member>, m: Message<'_>| decode_members(body(&m)?, members);
        self.socket.dump(CMD_LIST, &operation, &mut members, fill, Vec::clear, each).map_err(explain)?;
        Ok(members)
    }

    /// Makes a set; false if there is one of that name, whether it [fits](SetInfo::fits) or not.
    pub fn create(&mut self, new: &NewSet) -> Result<bool> {
        let revision = self.revision(new)?;
        let operation = format!("create set {} of type {}", new.name, new.kind.name());
        let version = self.version;
        // Exclusive, or the kernel keeps to itself that there is one already, if it is the same.
        let result = self.socket.request(CMD_CREATE, EXCLUSIVE, &operation, |b| {
            begin(b, version);
            new.encode(revision, b);
        });
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.is_exists() => Ok(false),
            Err(e) => Err(explain(e)),
        }
    }

    /// The revision of a type to make a set of. The kernel loads the type if it has to.
    fn revision(&mut self, new: &NewSet) -> Result<u8> {
        let operation = format!("look up sets of type {}", new.kind.name());
        let version = self.version;
        let fill = |b: &mut Buffer| {
            begin(b, version);
            new.encode_type(b);
        };
        let spoken = self.socket.ask(CMD_TYPE, &operation, fill, |m| set::decode_revisions(body(m)?));
        let (oldest, newest) = spoken.map_err(explain)?;
        let known = new.kind.newest_revision();
        if oldest > known {
            let source = Malformed::Unknown { what: "oldest type revision", value: oldest.into() };
            return Err(Error::Malformed { operation, source });
        }
        Ok(newest.min(known))
    }

    /// Removes a set and its members; false if there is none of that name. One that something refers to is refused.
    pub fn destroy(&mut self, name: &str) -> Result<bool> {
        self.on_set(CMD_DESTROY, "destroy", name)
    }

    /// Removes all members of a set; false if there is no set of that name.
    pub fn flush(&mut self, name: &str) -> Result<bool> {
        self.on_set(CMD_FLUSH, "flush", name)
    }

    /// A request that needs nothing but a name. It always has one: without, the kernel would take it for every set.
    fn on_set(&mut self, command: u16, verb: &str, name: &str) -> Result<bool> {
        let version = self.version;
        // Exclusive, or the kernel takes it for `ipset -exist` and keeps to itself that there was no such set.
        let result = self.socket.request(command, EXCLUSIVE, &format!("{verb} set {name}"), |b| {
            begin(b, version);
            b.attr_str(SET_NAME, name);
        });
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(explain(e)),
        }
    }
}

/// The version of the protocol to speak with this kernel; `None` if it has no sets.
fn version(socket: &mut Socket) -> Result<Option<u8>> {
    let operation = "agree on a version of the ipset protocol";
    let spoken = socket.ask(CMD_PROTOCOL, operation, |b| begin(b, NEWEST), |m| decode_versions(body(m)?));
    match spoken {
        Ok((oldest, newest)) if oldest <= NEWEST && newest >= OLDEST => Ok(Some(newest.min(NEWEST))),
        Ok((_, newest)) => Err(Error::Malformed {
            operation: operation.into(),
            source: Malformed::Unknown { what: "protocol version", value: newest.into() },
        }),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(explain(e)),
    }
}

/// Whether this is how a kernel refuses to speak about sets because it does not know them: `nfnetlink` says `EINVAL`
/// for a subsystem that is not there, a kernel without `nfnetlink` has no such socket, containers and old kernels
/// have their own words.
fn is_absent(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EINVAL | libc::ENOENT | libc::EPROTONOSUPPORT | libc::EOPNOTSUPP))
}

/// The oldest and the newest version the kernel speaks. The first kernels spoke one only.
fn decode_versions(body: Attrs<'_>) -> Result<(u8, u8), Malformed> {
    let newest = body.clone().need(PROTOCOL, "protocol version")?.u8("protocol version")?;
    let oldest = body.find(PROTOCOL_MIN).map_or(Ok(newest), |a| a.u8("oldest protocol version"))?;
    Ok((oldest, newest))
}
