//! A relay process that still runs after its agent has ended.

use crate::relay_client::{relay_is_running, shut_down_relay};
use portway_dataplane::{Clear, Error, Location};
use std::io::ErrorKind;

const RELAY: &str = "the relay process";

/// The location that stands for the relay process of this network namespace.
pub(crate) fn location() -> Location {
    Location { label: "userspace".to_owned(), id: String::new(), family: None }
}

/// Describes the relay process, if one runs. It is asked to shut down, except with [`Clear::List`], and ends after its
/// last connection.
pub(crate) fn clear(how: Clear) -> Result<Vec<String>, Error> {
    let is_running = match how {
        Clear::List => relay_is_running(),
        Clear::WhenIdle | Clear::Now => shut_down_relay(),
    };
    let is_running = match is_running {
        Ok(is_running) => is_running,
        // The relay of another user does not interfere with the new mode.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && how == Clear::WhenIdle => false,
        Err(source) if source.kind() == ErrorKind::PermissionDenied => {
            return Err(Error::Permission {
                operation: format!("connect to {RELAY}"),
                source: Box::new(source),
            });
        }
        Err(source) => return Err(Error::Process { process: RELAY, source }),
    };
    Ok(is_running.then(|| RELAY.to_owned()).into_iter().collect())
}
