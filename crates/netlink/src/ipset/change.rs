//! Changes to the members of sets: many members in one message, several messages in one datagram.
//!
//! Adding an existing member and removing a missing one succeed (`ipset -exist`). The kernel stops at the first member
//! of a message that it refuses, and reports its line number; the members after it are sent again. A full set refuses
//! every new member, so the members after it are then not sent again.

use super::wire::*;
use super::{Ipset, Member};
use crate::message::Buffer;
use crate::pipeline::Request;
use crate::{Failed, Result};

/// Largest number of members in one message. The largest member takes a hundred bytes; all must fit a nested attribute,
/// which has a 16-bit length, and a refusal, which contains the whole message, must fit the receive buffer.
const MAX_MEMBERS: usize = 256;

/// A change to one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the set's name and its members to add or remove")]
pub enum SetChange<'a> {
    /// Adds members. An existing member gets the mark of the new one.
    Add { set: &'a str, members: &'a [Member] },
    /// Removes members.
    Remove { set: &'a str, members: &'a [Member] },
}

impl<'a> SetChange<'a> {
    fn members(&self) -> &'a [Member] {
        match self {
            SetChange::Add { members, .. } | SetChange::Remove { members, .. } => members,
        }
    }

    fn with_members(self, members: &'a [Member]) -> SetChange<'a> {
        match self {
            SetChange::Add { set, .. } => SetChange::Add { set, members },
            SetChange::Remove { set, .. } => SetChange::Remove { set, members },
        }
    }

    /// The change as a verb phrase, for error texts; it names the refused member if that is known.
    fn describe(&self, member: Option<&Member>) -> String {
        let members = match (member, self.members()) {
            (Some(member), _) | (None, [member]) => member.to_string(),
            (None, members) => format!("{} members", members.len()),
        };
        match self {
            SetChange::Add { set, .. } => format!("add {members} to set {set}"),
            SetChange::Remove { set, .. } => format!("remove {members} from set {set}"),
        }
    }
}

/// The part of a change that is sent in one message.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    /// Index of the change in the batch.
    index: usize,
    change: SetChange<'a>,
    version: u8,
}

/// Splits changes into pieces.
fn pieces<'a>(changes: &'a [SetChange<'a>], version: u8) -> impl Iterator<Item = Piece<'a>> {
    changes.iter().enumerate().flat_map(move |(index, change)| {
        let chunks = change.members().chunks(MAX_MEMBERS);
        chunks.map(move |members| Piece { index, change: change.with_members(members), version })
    })
}

impl<'a> Piece<'a> {
    /// The piece with the members after the refused one, if there are any.
    fn after(&self, refused: usize) -> Option<Piece<'a>> {
        let rest = self.change.members().get(refused + 1..).filter(|rest| !rest.is_empty())?;
        Some(Piece { change: self.change.with_members(rest), ..*self })
    }
}

impl Request for Piece<'_> {
    fn kind(&self) -> u16 {
        match self.change {
            SetChange::Add { .. } => IPSET_CMD_ADD,
            SetChange::Remove { .. } => IPSET_CMD_DEL,
        }
    }

    /// No flags: with `NLM_F_EXCL`, adding an existing member would fail.
    fn flags(&self) -> u16 {
        0
    }

    fn fill(&self, b: &mut Buffer) {
        let (SetChange::Add { set, members } | SetChange::Remove { set, members }) = self.change;
        begin(b, self.version);
        b.attr_str(IPSET_ATTR_SETNAME, set);
        // The kernel overwrites this with the line number of the member that it refuses.
        b.attr_u32(IPSET_ATTR_LINENO, 0);
        b.nest(IPSET_ATTR_ADT, |b| (1..).zip(members).for_each(|(line, member)| member.encode(line, b)));
    }

    fn describe(&self) -> String {
        self.change.describe(None)
    }
}

impl Ipset {
    /// Adds members to a set; existing members get the new marks. The members after a refused one are added, too; the
    /// first error is returned, and names the refused member.
    pub fn add(&mut self, name: &str, members: &[Member]) -> Result<()> {
        self.apply(SetChange::Add { set: name, members })
    }

    /// Removes members from a set; missing members are ignored.
    pub fn remove(&mut self, name: &str, members: &[Member]) -> Result<()> {
        self.apply(SetChange::Remove { set: name, members })
    }

    fn apply(&mut self, change: SetChange<'_>) -> Result<()> {
        let failed = self.apply_all(&[change])?;
        failed.into_iter().next().map_or(Ok(()), |failed| Err(failed.error))
    }

    /// Applies changes in few datagrams, continues after refused members, and returns the errors. One change may have
    /// several errors, one for each refused member. Members are added and removed in order, except that those after a
    /// refused one may be sent after later changes.
    pub fn apply_all(&mut self, changes: &[SetChange<'_>]) -> Result<Vec<Failed>> {
        let mut failed = Vec::new();
        let mut rest = self.send_pieces(pieces(changes, self.version), &mut failed)?;
        while !rest.is_empty() {
            rest = self.send_pieces(rest.into_iter(), &mut failed)?;
        }
        failed.sort_by_key(|f| f.index);
        Ok(failed)
    }

    /// Sends pieces; returns the pieces with the members after the refused ones.
    fn send_pieces<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<'a>>,
        failed: &mut Vec<Failed>,
    ) -> Result<Vec<Piece<'a>>> {
        let mut left = Vec::new();
        self.socket.pipeline(pieces, |_, piece, ack, answer| {
            let index = refused_line(answer).map(|line| line as usize - 1);
            let member = index.and_then(|index| piece.change.members().get(index));
            if ack.errno != IPSET_ERR_HASH_FULL {
                left.extend(index.and_then(|index| piece.after(index)));
            }
            if let Err(error) = ack.into_result(&piece.change.describe(member)) {
                failed.push(Failed { index: piece.index, error: explain(error) });
            }
        })?;
        Ok(left)
    }
}
