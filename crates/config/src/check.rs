//! The collector of mistakes: one does not hide the next.

use crate::error::{ConfigError, Origin, Problem};
use crate::value::{Given, Value};
use std::ops::RangeInclusive;

/// The mistakes found so far.
#[derive(Debug, Default)]
pub struct Checks {
    errors: Vec<ConfigError>,
}

impl Checks {
    /// Notes a value that means nothing; `why` continues a sentence that begins with the value.
    pub fn invalid(&mut self, given: &Given<Value>, why: impl Into<String>) {
        self.push(given, given.field.to_owned(), why.into());
    }

    /// Notes an item of a list that means nothing; `place` is its place, `[2]` or `[2].verbosity`.
    pub fn invalid_item(&mut self, given: &Given<Value>, place: &str, why: impl Into<String>) {
        self.push(given, format!("{}{place}", given.field), why.into());
    }

    fn push(&mut self, given: &Given<Value>, field: String, why: String) {
        let problem = Problem::Invalid { value: given.value.to_string(), why };
        let error = ConfigError { origin: given.origin.clone(), field, problem };
        // One value may count for two settings; its mistake is reported once.
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// The configuration if there were no mistakes, else all of them, in the order of their lines.
    pub fn finish<T>(self, config: T) -> Result<T, Vec<ConfigError>> {
        if self.errors.is_empty() { Ok(config) } else { Err(in_order(self.errors)) }
    }
}

/// Mistakes in the order of their lines; those on the command line come first.
pub(crate) fn in_order(mut errors: Vec<ConfigError>) -> Vec<ConfigError> {
    errors.sort_by_key(|error| match &error.origin {
        Origin::File { line, .. } => *line,
        Origin::Flag(_) => 0,
    });
    errors
}

/// A number that lies within its range, or why it is refused.
pub(crate) fn within<T: TryFrom<i64>>(value: i64, range: &RangeInclusive<i64>) -> Result<T, String> {
    let (least, most) = (range.start(), range.end());
    match T::try_from(value) {
        Ok(number) if range.contains(&value) => Ok(number),
        _ if *most < i64::from(i32::MAX) => Err(format!("must be between {least} and {most}")),
        _ if value < *least => Err(format!("must be at least {least}")),
        _ => Err(format!("must be at most {most}")),
    }
}
