//! Whether a failed request is sent again, and when.
//!
//! In: the error, and whether the request is idempotent. Out: a wait, or none if the error is final. Pure. A request
//! that may have been processed by the server is repeated only if it is idempotent.

use super::error::{Reason, RequestError};
use std::time::Duration;

/// Maximum number of times that a request is sent.
const MAX_ATTEMPTS: u32 = 5;
/// The first wait. It doubles with every attempt.
const INITIAL: Duration = Duration::from_millis(200);
/// The longest `Retry-After` that is obeyed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The wait before a request is sent again, or `None` if its error is final. `attempt` counts from 1.
pub(super) fn wait(error: &RequestError, attempt: u32, idempotent: bool) -> Option<Duration> {
    if attempt >= MAX_ATTEMPTS {
        return None;
    }
    let doubled = INITIAL * (1 << (attempt - 1).min(8));
    match error {
        // A server that answers 429 has not processed the request.
        RequestError::Refused { reason: Reason::TooManyRequests, retry_after, .. } => {
            Some(retry_after.unwrap_or(doubled).min(MAX_RETRY_AFTER))
        }
        // Without Retry-After, the response may be from a gateway that has forwarded the request.
        RequestError::Refused { reason: Reason::Unavailable, retry_after, .. }
            if idempotent || retry_after.is_some() =>
        {
            Some(retry_after.unwrap_or(doubled).min(MAX_RETRY_AFTER))
        }
        // The server may have processed the request.
        RequestError::Refused { reason: Reason::Timeout, retry_after, .. } if idempotent => {
            Some(retry_after.unwrap_or(doubled).min(MAX_RETRY_AFTER))
        }
        RequestError::NoResponse { sent, .. } if idempotent || !sent => Some(doubled),
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

    fn no_response(sent: bool) -> RequestError {
        RequestError::NoResponse { request: "x".into(), message: String::new(), sent }
    }

    #[test]
    fn a_request_that_may_have_been_processed_is_repeated_only_if_idempotent() {
        let first = Some(INITIAL);
        for (error, idempotent, expected) in [
            (refused(Reason::TooManyRequests, None), false, first),
            (refused(Reason::TooManyRequests, Some(3)), false, Some(Duration::from_secs(3))),
            (refused(Reason::Unavailable, Some(3600)), false, Some(MAX_RETRY_AFTER)),
            (refused(Reason::Unavailable, None), true, first),
            (refused(Reason::Unavailable, None), false, None),
            (refused(Reason::Timeout, None), true, first),
            (refused(Reason::Timeout, None), false, None),
            (no_response(false), false, first),
            (no_response(true), true, first),
            (no_response(true), false, None),
            (refused(Reason::Conflict, None), true, None),
            (refused(Reason::NotFound, None), true, None),
            (refused(Reason::Forbidden, None), true, None),
        ] {
            assert_eq!(wait(&error, 1, idempotent), expected, "{error}, idempotent: {idempotent}");
        }
    }

    #[test]
    fn waits_double_until_the_last_attempt() {
        let waits: Vec<_> =
            (1..=MAX_ATTEMPTS).map(|attempt| wait(&no_response(false), attempt, false)).collect();
        let millis = |n| Some(Duration::from_millis(n));
        assert_eq!(waits, [millis(200), millis(400), millis(800), millis(1600), None]);
    }
}
