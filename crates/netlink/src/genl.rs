//! Generic netlink: families that have a fixed name, and a number that the kernel assigns when they are loaded.
//!
//! [`Genl::open`] looks up a family by name and returns a socket for it, or `None` if the kernel does not have the
//! family. The lookup may load the module of the family. The constants have their names from `linux/genetlink.h`.

use crate::message::{Attrs, Buffer, Message, attrs};
use crate::pipeline::Request;
use crate::{DecodeError, Failed, Protocol, Result, Socket};

/// The controller `nlctrl`, the family that looks up other families. It has a fixed number.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_VERSION: u8 = 1;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Size of `struct genlmsghdr`.
const GENL_HDRLEN: usize = 4;

/// `struct genlmsghdr`: command, version, and two reserved bytes.
fn genlmsghdr(command: u8, version: u8) -> [u8; GENL_HDRLEN] {
    [command, version, 0, 0]
}

/// A socket for one family, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Genl {
    socket: Socket,
    id: u16,
    version: u8,
}

impl Genl {
    /// Opens a socket for the family; `None` if the kernel does not have it.
    pub fn open(name: &str, version: u8) -> Result<Option<Genl>> {
        let mut socket = Socket::open(Protocol::Generic)?;
        Ok(family(&mut socket, name)?.map(|id| Genl { socket, id, version }))
    }

    /// The family's number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The number of messages sent so far.
    pub fn sent(&self) -> u64 {
        self.socket.sent()
    }

    /// Sends commands in few datagrams, in order, continues after refused ones, and returns their errors.
    pub(crate) fn command_all<C: Command>(&mut self, commands: &[C]) -> Result<Vec<Failed>> {
        let (id, version) = (self.id, self.version);
        self.socket.request_all(commands.iter().map(|command| FamilyCommand { command, id, version }))
    }

    /// Sends one command and reads the one message that answers it.
    pub(crate) fn query<T>(
        &mut self,
        command: u8,
        operation: &str,
        fill: impl FnOnce(&mut Buffer),
        decode: impl Fn(Attrs<'_>) -> Result<T, DecodeError>,
    ) -> Result<T> {
        let version = self.version;
        let fill = |b: &mut Buffer| {
            b.raw(&genlmsghdr(command, version));
            fill(b);
        };
        self.socket.query(self.id, operation, fill, |m| decode(body(m)?))
    }

    /// Sends one command and reads its acknowledgement.
    pub(crate) fn request(
        &mut self,
        command: u8,
        operation: &str,
        fill: impl FnOnce(&mut Buffer),
    ) -> Result<()> {
        let version = self.version;
        self.socket.request(self.id, 0, operation, |b| {
            b.raw(&genlmsghdr(command, version));
            fill(b);
        })
    }

    /// Requests a list and returns its decoded entries.
    pub(crate) fn list<T>(
        &mut self,
        command: u8,
        operation: &str,
        fill: impl Fn(&mut Buffer),
        decode: impl Fn(Attrs<'_>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let version = self.version;
        let request = |b: &mut Buffer| {
            b.raw(&genlmsghdr(command, version));
            fill(b);
        };
        let each = |all: &mut Vec<T>, m: Message<'_>| {
            all.push(decode(body(&m)?)?);
            Ok(())
        };
        self.socket.dump(self.id, operation, &mut all, request, Vec::clear, each)?;
        Ok(all)
    }
}

/// A command to a family.
pub(crate) trait Command {
    /// The number of the command.
    fn code(&self) -> u8;
    /// Writes the attributes.
    fn fill(&self, b: &mut Buffer);
    /// The command as a verb phrase, for error texts.
    fn describe(&self) -> String;
}

/// A command and the family it is sent to.
struct FamilyCommand<'a, C> {
    command: &'a C,
    id: u16,
    version: u8,
}

impl<C: Command> Request for FamilyCommand<'_, C> {
    fn kind(&self) -> u16 {
        self.id
    }

    fn flags(&self) -> u16 {
        0
    }

    fn fill(&self, b: &mut Buffer) {
        b.raw(&genlmsghdr(self.command.code(), self.version));
        self.command.fill(b);
    }

    fn describe(&self) -> String {
        self.command.describe()
    }
}

/// The number of the family of this name; `None` if the kernel does not have it.
pub fn family(socket: &mut Socket, name: &str) -> Result<Option<u16>> {
    let fill = |b: &mut Buffer| {
        b.raw(&genlmsghdr(CTRL_CMD_GETFAMILY, CTRL_VERSION));
        b.attr_str(CTRL_ATTR_FAMILY_NAME, name);
    };
    let operation = format!("look up the generic netlink family {name}");
    match socket.query(GENL_ID_CTRL, &operation, fill, |m| decode_family(body(m)?)) {
        Ok(id) => Ok(Some(id)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Decodes the number from the description of a family.
pub fn decode_family(body: Attrs<'_>) -> Result<u16, DecodeError> {
    body.need(CTRL_ATTR_FAMILY_ID, "family number")?.u16("family number")
}

/// The attributes of a message, which follow its `genlmsghdr`.
fn body<'a>(m: &Message<'a>) -> Result<Attrs<'a>, DecodeError> {
    Ok(attrs(m.body.get(GENL_HDRLEN..).ok_or(DecodeError::Truncated("generic netlink message"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_number_is_decoded_and_required() {
        let mut b = Buffer::default();
        b.attr_str(CTRL_ATTR_FAMILY_NAME, "IPVS");
        assert_eq!(decode_family(attrs(b.bytes())), Err(DecodeError::Missing("family number")));
        b.attr_u16(CTRL_ATTR_FAMILY_ID, 0x1234);
        assert_eq!(decode_family(attrs(b.bytes())), Ok(0x1234));
    }
}
