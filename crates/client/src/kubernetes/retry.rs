//! Whether a failed request is sent again, and when.
//!
//! In: what is known of the failure. Out: a wait, or the end. Pure. Repeating must never do something twice: a request
//! that may have reached the server is repeated only if doing it twice is the same as doing it once.

use super::error::{Reason, RequestError};
use std::time::Duration;

/// How often a request is sent at most.
const ATTEMPTS: u32 = 5;
/// The first wait; it doubles.
const FIRST: Duration = Duration::from_millis(200);
/// The longest wait that a server may ask for.
const LONGEST: Duration = Duration::from_secs(30);

/// The wait before a request is sent again, or `None` if its error is final. `attempt` counts from 1; `repeatable`:
/// doing it twice is the same as doing it once.
pub(super) fn wait(error: &RequestError, attempt: u32, repeatable: bool) -> Option<Duration> {
    if attempt >= ATTEMPTS {
        return None;
    }
    let doubled = FIRST * (1 << (attempt - 1).min(8));
    match error {
        // The server says that it has not done it.
        RequestError::Refused { reason: Reason::TooManyRequests, retry_after, .. } => {
            Some(retry_after.unwrap_or(doubled).min(LONGEST))
        }
        // Without a time to wait, the answer may be that of a gateway, which has passed the request on.
        RequestError::Refused { reason: Reason::Unavailable, retry_after, .. }
            if repeatable || retry_after.is_some() =>
        {
            Some(retry_after.unwrap_or(doubled).min(LONGEST))
        }
        // It may have done it, or may not.
        RequestError::Refused { reason: Reason::Timeout, retry_after, .. } if repeatable => {
            Some(retry_after.unwrap_or(doubled).min(LONGEST))
        }
        RequestError::NoResponse { sent, .. } if repeatable || !sent => Some(doubled),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: Reason, retry_after: Option<u64>) -> RequestError {
        let (request, message) = ("x".to_owned(), String::new());
        let retry_after = retry_after.map(Duration::from_secs);
        RequestError::Refused { request, reason, code: 0, message, causes: Vec::new(), retry_after }
    }

    fn lost(sent: bool) -> RequestError {
        RequestError::NoResponse { request: "x".into(), message: String::new(), sent }
    }

    #[test]
    fn a_request_is_repeated_only_if_that_does_nothing_twice() {
        let first = Some(FIRST);
        for (error, repeatable, expected) in [
            (refused(Reason::TooManyRequests, None), false, first),
            (refused(Reason::TooManyRequests, Some(3)), false, Some(Duration::from_secs(3))),
            (refused(Reason::Unavailable, Some(3600)), false, Some(LONGEST)),
            (refused(Reason::Unavailable, None), true, first),
            (refused(Reason::Unavailable, None), false, None),
            (refused(Reason::Timeout, None), true, first),
            (refused(Reason::Timeout, None), false, None),
            (lost(false), false, first),
            (lost(true), true, first),
            (lost(true), false, None),
            (refused(Reason::Conflict, None), true, None),
            (refused(Reason::NotFound, None), true, None),
            (refused(Reason::Forbidden, None), true, None),
        ] {
            assert_eq!(wait(&error, 1, repeatable), expected, "{error}, repeatable: {repeatable}");
        }
    }

    #[test]
    fn waits_double_and_end() {
        let waits: Vec<_> = (1..=ATTEMPTS).map(|attempt| wait(&lost(false), attempt, false)).collect();
        let millis = |n| Some(Duration::from_millis(n));
        assert_eq!(waits, [millis(200), millis(400), millis(800), millis(1600), None]);
    }
}
