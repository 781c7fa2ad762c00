//! The outage that was reported: its message, and the input that ends it.
//!
//! A server that refuses requests is usable again when it accepts one. A server whose responses are of no use, because
//! lists break or never end, or watches end at once, accepts every request: such an outage lasts until a list is
//! complete, or until a watch has an event or lasts.

use super::super::failure::{Failure, FailureKind};
use super::{Output, Phase, State};
use crate::{Notice, Outage, OutageReason};

/// Consecutive responses of one kind that were of no use, after which that is an outage.
pub(super) const USELESS_RESPONSES: u32 = 3;

/// What ends an outage; a later one ends those of the earlier ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// A request that the server accepts.
    Accepted,
    /// A complete list.
    List,
    /// A watch that has an event, or lasts.
    Watch,
}

/// An outage that was reported and is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    message: String,
    end: End,
}

impl State {
    /// What would end an outage that begins with the end of the current response.
    pub(super) fn end_of_outage(&self) -> End {
        match (self.accepted, &self.phase) {
            (false, _) => End::Accepted,
            (true, Phase::Watching { .. }) => End::Watch,
            (true, _) => End::List,
        }
    }

    /// Reports an outage when it begins or its cause changes. Responses may be broken in many ways: of those only the
    /// first is reported.
    pub(super) fn begin_outage<R>(
        &mut self,
        reason: OutageReason,
        message: String,
        end: End,
    ) -> Option<Output<R>> {
        let known = self.outage.as_ref();
        let is_known =
            |known: &Reported| known.message == message || (end > End::Accepted && known.end >= end);
        if known.is_some_and(is_known) {
            return None;
        }
        let end = known.map_or(end, |known| known.end.max(end));
        self.outage = Some(Reported { message: message.clone(), end });
        Some(Output::Send(Notice::Outage(Outage { resource: Some(self.resource), reason, message })))
    }

    /// Ends the outage, if this input does.
    pub(super) fn end_outage<R>(&mut self, input: End) -> Option<Output<R>> {
        let resource = self.resource;
        let outage = self.outage.take_if(|outage| outage.end <= input)?;
        tracing::trace!(outage.message, "the outage is over");
        Some(Output::Send(Notice::Recovered(Some(resource))))
    }

    /// Reports a failure. A broken connection is reported only if the next one fails too, and an expired list only if
    /// several in a row expire.
    pub(super) fn report<R>(&mut self, failure: &Failure, end: End) -> Option<Output<R>> {
        let mut message = failure.message.clone();
        let reason = match failure.kind {
            FailureKind::Outage(reason) => reason,
            FailureKind::Invalid => OutageReason::Refused,
            FailureKind::Unanswered => OutageReason::Unreachable,
            FailureKind::Dropped if self.failures > 0 => OutageReason::Unreachable,
            FailureKind::Expired if self.expired_lists >= USELESS_RESPONSES => {
                let (resource, times) = (self.resource, self.expired_lists);
                message =
                    format!("{resource}: {times} lists in a row have expired before they were complete");
                return self.begin_outage(OutageReason::Refused, message, End::List);
            }
            FailureKind::Dropped | FailureKind::Expired => return None,
        };
        self.begin_outage(reason, message, end)
    }
}
