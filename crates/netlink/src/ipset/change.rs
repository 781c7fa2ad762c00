//! Changes to what is in sets: thousands of members in one message, several messages in one datagram.
//!
//! Adding what is there and removing what is not is no failure (`ipset -exist`). The kernel stops at the first member
//! of a message that it refuses, and says which one it was, so the rest of them are sent again without it. A set that
//! is full refuses them all: there the rest is left out.

use super::wire::{self, CMD_ADD, CMD_REMOVE, HASH_FULL, LINE, MEMBERS, SET_NAME, begin, explain};
use super::{Ipset, Member};
use crate::message::Buffer;
use crate::pipeline::Request;
use crate::{Failed, Result};

/// Members in one message. The largest take a hundred bytes, and all of them must fit a nested attribute, whose
/// length has sixteen bits; a refusal, which has the whole message in it, must fit our receive buffer.
const MEMBERS_AT_ONCE: usize = 256;

/// A change to one set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the set's name and what comes or goes")]
pub enum SetChange<'a> {
    /// Adds members. One that is there takes the new one's mark.
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

    fn with(self, members: &'a [Member]) -> SetChange<'a> {
        match self {
            SetChange::Add { set, .. } => SetChange::Add { set, members },
            SetChange::Remove { set, .. } => SetChange::Remove { set, members },
        }
    }

    /// The change in words; about one member, if that is known.
    fn describe(&self, member: Option<&Member>) -> String {
        let what = match (member, self.members()) {
            (Some(member), _) | (None, [member]) => member.to_string(),
            (None, members) => format!("{} members", members.len()),
        };
        match self {
            SetChange::Add { set, .. } => format!("add {what} to set {set}"),
            SetChange::Remove { set, .. } => format!("remove {what} from set {set}"),
        }
    }
}

/// What of a change goes into one message.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    /// The change's place in the batch.
    index: usize,
    change: SetChange<'a>,
    version: u8,
}

/// Cuts changes into pieces.
fn pieces<'a>(changes: &'a [SetChange<'a>], version: u8) -> impl Iterator<Item = Piece<'a>> {
    changes.iter().enumerate().flat_map(move |(index, change)| {
        let cut = change.members().chunks(MEMBERS_AT_ONCE);
        cut.map(move |members| Piece { index, change: change.with(members), version })
    })
}

impl<'a> Piece<'a> {
    /// What is left of it behind the member that it failed at.
    fn behind(&self, failed: usize) -> Option<Piece<'a>> {
        let rest = self.change.members().get(failed + 1..).filter(|rest| !rest.is_empty())?;
        Some(Piece { change: self.change.with(rest), ..*self })
    }
}

impl Request for Piece<'_> {
    fn kind(&self) -> u16 {
        match self.change {
            SetChange::Add { .. } => CMD_ADD,
            SetChange::Remove { .. } => CMD_REMOVE,
        }
    }

    /// None: with `EXCLUSIVE`, adding what is there would fail.
    fn flags(&self) -> u16 {
        0
    }

    fn fill(&self, b: &mut Buffer) {
        let (SetChange::Add { set, members } | SetChange::Remove { set, members }) = self.change;
        begin(b, self.version);
        b.attr_str(SET_NAME, set);
        // Where the kernel writes the line of the member that it refuses: 0 means none.
        b.attr_u32(LINE, 0);
        b.nest(MEMBERS, |b| (1..).zip(members).for_each(|(line, member)| member.encode(line, b)));
    }

    fn describe(&self) -> String {
        self.change.describe(None)
    }
}

impl Ipset {
    /// Adds members to a set; those that are there take the new ones' marks. All that can be added are; the first
    /// failure, which names the member, comes back.
    pub fn add(&mut self, name: &str, members: &[Member]) -> Result<()> {
        self.apply(SetChange::Add { set: name, members })
    }

    /// Removes members from a set, if they are there.
    pub fn remove(&mut self, name: &str, members: &[Member]) -> Result<()> {
        self.apply(SetChange::Remove { set: name, members })
    }

    fn apply(&mut self, change: SetChange<'_>) -> Result<()> {
        let failed = self.apply_all(&[change])?;
        failed.into_iter().next().map_or(Ok(()), |failed| Err(failed.error))
    }

    /// Makes many changes in few datagrams, and goes on after what fails. There may be several failures of one change,
    /// for each names one member where the kernel does. Members come and go in order, except that those behind one
    /// that failed may have to wait for the changes behind theirs.
    pub fn apply_all(&mut self, changes: &[SetChange<'_>]) -> Result<Vec<Failed>> {
        let mut failed = Vec::new();
        let mut rest = self.send_pieces(pieces(changes, self.version), &mut failed)?;
        while !rest.is_empty() {
            rest = self.send_pieces(rest.into_iter(), &mut failed)?;
        }
        failed.sort_by_key(|f| f.index);
        Ok(failed)
    }

    /// Sends pieces; what is left of them behind those members that failed comes back.
    fn send_pieces<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<'a>>,
        failed: &mut Vec<Failed>,
    ) -> Result<Vec<Piece<'a>>> {
        let mut left = Vec::new();
        self.socket.pipeline(pieces, |_, piece, ack, answer| {
            let place = wire::refused_line(answer).map(|line| line as usize - 1);
            let member = place.and_then(|place| piece.change.members().get(place));
            if ack.errno != HASH_FULL {
                left.extend(place.and_then(|place| piece.behind(place)));
            }
            if let Err(error) = ack.into_result(&piece.change.describe(member)) {
                failed.push(Failed { index: piece.index, error: explain(error) });
            }
        })?;
        Ok(left)
    }
}
