//! Lists that are read page by page, and the limits of one that does not end.

use super::super::wire::ListMeta;
use super::outage::End;
use super::{Output, Phase, State, listed, retry};
use crate::OutageReason;
use std::time::Duration;

/// Consecutive pages without objects after which a list is given up. With a selector a page may be empty, because the
/// server counts objects before it selects them.
pub(super) const MAX_EMPTY_PAGES: u32 = 100;

/// Pages after which a list is given up: a million objects.
const MAX_PAGES: u32 = 2_000;

/// The pages of the current list so far, the consecutive ones without an object, and the objects of the current page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageCount {
    total: u32,
    empty: u32,
    objects: u32,
}

impl PageCount {
    pub(super) fn count_object(&mut self) {
        self.objects = self.objects.saturating_add(1);
    }
}

/// A list, or a page of one, is complete.
pub(super) fn page_end<R>(state: &mut State, meta: ListMeta) -> Vec<Output<R>> {
    let mut outputs = Vec::new();
    if meta.continue_token.is_empty() {
        outputs.extend(state.end_outage(End::List));
        outputs.push(listed(state, meta.resource_version));
    } else if let Some(reason) = endless(state, &meta.continue_token) {
        return give_up(state, &reason);
    } else {
        if state.outage.is_none() && state.expired_lists == 0 {
            state.failures = 0;
        }
        state.phase = Phase::Paged { continue_token: Some(meta.continue_token) };
    }
    outputs.push(Output::Request(state.request()));
    outputs
}

/// Counts a page, and returns the reason to give the list up: a server that never sends the last page would be asked for
/// ever.
fn endless(state: &mut State, next: &str) -> Option<String> {
    let PageCount { total, empty, objects } = state.pages;
    let (total, empty) = (total + 1, if objects == 0 { empty + 1 } else { 0 });
    state.pages = PageCount { total, empty, objects: 0 };
    match &state.phase {
        Phase::Paged { continue_token: Some(token) } if token == next => {
            Some("the server returned the same continue token twice".to_owned())
        }
        _ if empty >= MAX_EMPTY_PAGES => {
            Some(format!("the server returned {empty} pages without objects in a row"))
        }
        _ if total >= MAX_PAGES => Some(format!("the server returned {total} pages")),
        _ => None,
    }
}

/// Starts the list over after a wait.
fn give_up<R>(state: &mut State, reason: &str) -> Vec<Output<R>> {
    state.phase = Phase::Paged { continue_token: None };
    let message = format!("{}: the list does not end: {reason}", state.resource);
    let mut outputs: Vec<Output<R>> =
        state.begin_outage(OutageReason::Refused, message, End::List).into_iter().collect();
    outputs.extend(retry(state, Duration::ZERO));
    outputs
}
