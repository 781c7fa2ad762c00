//! Collects the errors of a configuration, so that all are reported at once.

use crate::error::{ConfigError, Origin, Problem};
use crate::value::{Given, Value};
use std::ops::RangeInclusive;

/// The errors found so far.
#[derive(Debug, Default)]
pub struct Checks {
    errors: Vec<ConfigError>,
}

impl Checks {
    /// Adds an error for an invalid value; `reason` continues a sentence that begins with the value.
    pub fn invalid(&mut self, given: &Given<Value>, reason: impl Into<String>) {
        self.push(given, given.field.to_owned(), reason.into());
    }

    /// Adds an error for an invalid item of a list; `item` is its path in the list, `[2]` or `[2].verbosity`.
    pub fn invalid_item(&mut self, given: &Given<Value>, item: &str, reason: impl Into<String>) {
        self.push(given, format!("{}{item}", given.field), reason.into());
    }

    fn push(&mut self, given: &Given<Value>, field: String, reason: String) {
        let problem = Problem::Invalid { value: given.value.to_string(), reason };
        let error = ConfigError { origin: given.origin.clone(), field, problem };
        // One value may apply to two settings; its error is reported once.
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// The configuration if there were no errors, else all errors in the order of their lines.
    pub fn finish<T>(self, config: T) -> Result<T, Vec<ConfigError>> {
        if self.errors.is_empty() { Ok(config) } else { Err(in_order(self.errors)) }
    }
}

/// Sorts errors by line; errors of the command line come first.
pub fn in_order(mut errors: Vec<ConfigError>) -> Vec<ConfigError> {
    errors.sort_by_key(|error| match &error.origin {
        Origin::File { line, .. } => *line,
        Origin::Flag(_) => 0,
    });
    errors
}

/// Checks that a number is within a range, and converts it. The error is the reason for [`Checks::invalid`].
pub(crate) fn within<T: TryFrom<i64>>(value: i64, range: &RangeInclusive<i64>) -> Result<T, String> {
    let (least, most) = (range.start(), range.end());
    match T::try_from(value) {
        Ok(number) if range.contains(&value) => Ok(number),
        _ if *most < i64::from(i32::MAX) => Err(format!("must be between {least} and {most}")),
        _ if value < *least => Err(format!("must be at least {least}")),
        _ => Err(format!("must be at most {most}")),
    }
}
