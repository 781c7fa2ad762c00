//! Generic netlink: families that have a name, and a number only once they are loaded (`linux/genetlink.h`).
//!
//! In goes a family's name, out comes a [`Genl`], a socket that speaks to that family, or `None` if the kernel does
//! not have it. The kernel may load a module that declares itself under the name asked for.

use crate::message::{Attrs, Buffer, Message, attrs};
use crate::pipeline::Request;
use crate::{Failed, Malformed, Protocol, Result, Socket};

/// The one family whose number is fixed: it knows the others.
const CONTROL: u16 = 0x10;
const CONTROL_VERSION: u8 = 1;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// `struct genlmsghdr`: command, version, and two bytes of nothing.
const HEADER: usize = 4;

/// A conversation with one family, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Genl {
    socket: Socket,
    id: u16,
    version: u8,
}

impl Genl {
    /// Opens it; `None` if the kernel has no such family.
    pub fn open(name: &str, version: u8) -> Result<Option<Genl>> {
        let mut socket = Socket::open(Protocol::Generic)?;
        Ok(family(&mut socket, name)?.map(|id| Genl { socket, id, version }))
    }

    /// The family's number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// How many messages it has sent so far.
    pub fn sent(&self) -> u64 {
        self.socket.sent()
    }

    /// Sends many commands in few datagrams, in order, and goes on after those that fail.
    pub(crate) fn command_all<C: Command>(&mut self, commands: &[C]) -> Result<Vec<Failed>> {
        let (id, version) = (self.id, self.version);
        self.socket.request_all(commands.iter().map(|command| Addressed { command, id, version }))
    }

    /// Sends one command and reads the one message that answers it.
    pub(crate) fn ask<T>(
        &mut self,
        command: u8,
        operation: &str,
        fill: impl FnOnce(&mut Buffer),
        decode: impl Fn(Attrs<'_>) -> Result<T, Malformed>,
    ) -> Result<T> {
        let version = self.version;
        let fill = |b: &mut Buffer| {
            b.raw(&[command, version, 0, 0]);
            fill(b);
        };
        self.socket.ask(self.id, operation, fill, |m| decode(body(m)?))
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
            b.raw(&[command, version, 0, 0]);
            fill(b);
        })
    }

    /// Asks for a list; what `decode` makes of the entries comes back.
    pub(crate) fn list<T>(
        &mut self,
        command: u8,
        operation: &str,
        fill: impl Fn(&mut Buffer),
        decode: impl Fn(Attrs<'_>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let version = self.version;
        let ask = |b: &mut Buffer| {
            b.raw(&[command, version, 0, 0]);
            fill(b);
        };
        let each = |all: &mut Vec<T>, m: Message<'_>| {
            all.push(decode(body(&m)?)?);
            Ok(())
        };
        self.socket.dump(self.id, operation, &mut all, ask, Vec::clear, each)?;
        Ok(all)
    }
}

/// Something to be asked of a family.
pub(crate) trait Command {
    /// Its number.
    fn code(&self) -> u8;
    /// Writes its attributes.
    fn fill(&self, b: &mut Buffer);
    /// What is asked, in words.
    fn describe(&self) -> String;
}

/// A command, and the family it goes to.
struct Addressed<'a, C> {
    command: &'a C,
    id: u16,
    version: u8,
}

impl<C: Command> Request for Addressed<'_, C> {
    fn kind(&self) -> u16 {
        self.id
    }

    fn flags(&self) -> u16 {
        0
    }

    fn fill(&self, b: &mut Buffer) {
        b.raw(&[self.command.code(), self.version, 0, 0]);
        self.command.fill(b);
    }

    fn describe(&self) -> String {
        self.command.describe()
    }
}

/// The number of the family of this name; `None` if the kernel does not have it.
pub fn family(socket: &mut Socket, name: &str) -> Result<Option<u16>> {
    let fill = |b: &mut Buffer| {
        b.raw(&[GET_FAMILY, CONTROL_VERSION, 0, 0]);
        b.attr_str(FAMILY_NAME, name);
    };
    let operation = format!("look up the generic netlink family {name}");
    match socket.ask(CONTROL, &operation, fill, |m| decode_family(body(m)?)) {
        Ok(id) => Ok(Some(id)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads the number out of a family's description.
pub fn decode_family(body: Attrs<'_>) -> Result<u16, Malformed> {
    body.need(FAMILY_ID, "family number")?.u16("family number")
}

/// What is behind the `genlmsghdr` of a message.
fn body<'a>(m: &Message<'a>) -> Result<Attrs<'a>, Malformed> {
    Ok(attrs(m.body.get(HEADER..).ok_or(Malformed::Short("generic netlink message"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_familys_number_is_read_and_must_be_there() {
        let mut b = Buffer::default();
        b.attr_str(FAMILY_NAME, "IPVS");
        assert_eq!(decode_family(attrs(b.bytes())), Err(Malformed::Missing("family number")));
        b.attr_u16(FAMILY_ID, 0x1234);
        assert_eq!(decode_family(attrs(b.bytes())), Ok(0x1234));
    }
}
