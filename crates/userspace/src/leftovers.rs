//! The relay process that an earlier run left behind.

use crate::relay_client::{relay_is_running, shut_down_relay};
use portway_dataplane::{Clear, Error, Location};
use std::io::ErrorKind;

const RELAY: &str = "the relay process";

/// The place of the relay process.
pub(crate) fn location() -> Location {
    Location { label: "userspace".to_owned(), id: String::new(), family: None }
}

/// The relay in words, if one runs; told to shut down unless `how` says to look. It ends when its connections have.
pub(crate) fn clear(how: Clear) -> Result<Vec<String>, Error> {
    let found = match how {
        Clear::Look => relay_is_running(),
        Clear::WhenIdle | Clear::Now => shut_down_relay(),
    };
    let found = match found {
        Ok(found) => found,
        // The relay of another user does not disturb the mode that runs.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && how == Clear::WhenIdle => false,
        Err(source) if source.kind() == ErrorKind::PermissionDenied => {
            return Err(Error::Permission { operation: format!("reach {RELAY}"), source: Box::new(source) });
        }
        Err(source) => return Err(Error::Process { process: RELAY, source }),
    };
    Ok(found.then(|| RELAY.to_owned()).into_iter().collect())
}
