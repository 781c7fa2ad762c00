//! The values of flags, read the way Go's flag packages read them.

use crate::config::duration::{InvalidDuration, parse_duration};
use std::time::Duration;

/// How a switch's value is shown in the help.
pub(super) const BOOL: &str = "true|false";

/// Go's `strconv.ParseBool`.
pub(super) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("neither true nor false".to_owned()),
    }
}

/// A duration such as `1m30s`.
pub(super) fn go_duration(text: &str) -> Result<Duration, InvalidDuration> {
    parse_duration(text)
}

/// A feature gate, `Name=true`.
pub(super) fn gate(text: &str) -> Result<(String, bool), String> {
    let (name, value) = text.split_once('=').ok_or("no Name=true or Name=false")?;
    Ok((name.trim().to_owned(), go_bool(value.trim())?))
}

/// A module's log level, `pattern=N`.
pub(super) fn module_level(text: &str) -> Result<(String, i64), String> {
    let (pattern, level) = text.split_once('=').ok_or("no pattern=N")?;
    let level = level.trim().parse().map_err(|_| format!("{level:?} is not a log level"))?;
    Ok((pattern.trim().to_owned(), level))
}
