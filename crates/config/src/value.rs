//! Settings as typed: a value, its kind and its origin. Values are not validated here.

use crate::duration::{format_duration, parse_duration};
use crate::error::{ConfigError, Origin};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A value of a setting.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are their names")]
pub enum Value {
    Bool(bool),
    Integer(i64),
    Number(f32),
    Text(String),
    Duration(Duration),
    /// A list of [`Value::Text`] or [`Value::Named`].
    List(Vec<Given<Value>>),
    /// A boolean or a number with its name.
    Named(String, Box<Value>),
}

impl Value {
    /// Whether it is the zero of a number or a duration.
    pub fn is_zero(&self) -> bool {
        match self {
            Value::Integer(number) => *number == 0,
            Value::Number(number) => *number == 0.0,
            Value::Duration(duration) => duration.is_zero(),
            _ => false,
        }
    }

    /// Whether it is what Go writes for a setting that is not set.
    pub fn is_unset(&self) -> bool {
        match self {
            Value::Bool(value) => !value,
            Value::Text(text) => text.is_empty() || text == "0",
            Value::List(items) => items.is_empty(),
            _ => self.is_zero(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Integer(number) => number.fmt(f),
            Value::Number(number) => number.fmt(f),
            Value::Text(text) => f.write_str(text),
            Value::Duration(Duration::ZERO) => f.write_str("0"),
            Value::Duration(duration) => f.write_str(&format_duration(*duration)),
            Value::List(items) => {
                let items: Vec<String> = items.iter().map(|item| item.value.to_string()).collect();
                f.write_str(&items.join(","))
            }
            Value::Named(name, value) => write!(f, "{name}={value}"),
        }
    }
}

/// A value, its setting, and its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Given<T> {
    /// The value.
    pub value: T,
    /// The path of the setting: `nftables.masqueradeBit`.
    pub field: &'static str,
    /// The line or the flag.
    pub origin: Origin,
}

impl<T> Given<T> {
    /// Whether it came from the command line.
    pub fn by_flag(&self) -> bool {
        matches!(self.origin, Origin::Flag(_))
    }
}

/// The kind of value that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`; a flag may omit the value, which means `true`.
    Bool,
    /// A whole number.
    Integer,
    /// A number with or without a fraction.
    Number,
    /// Text; in a file quoted or not, but not a number.
    Text,
    /// A duration in Go's syntax.
    Duration,
    /// A duration, or a number of nanoseconds.
    DurationOrNanos,
    /// An amount such as `64Ki` or `0`, kept as text.
    Quantity,
    /// A list of texts; as a flag separated by commas.
    Texts,
    /// Free names, each `true` or `false`; as a flag `Name=true`.
    Switches,
    /// A list of sections with a name and a number, with the names of these two fields; as a flag `name=N`.
    Pairs(&'static str, &'static str),
}

impl Kind {
    /// The description of the kind in error messages.
    pub fn expected(self) -> &'static str {
        match self {
            Kind::Bool => "true or false",
            Kind::Integer => "a whole number",
            Kind::Number => "a number",
            Kind::Text => "text",
            Kind::Duration => "a duration in quotes or letters, such as 30s",
            Kind::DurationOrNanos => "a duration such as 5s, or nanoseconds",
            Kind::Quantity => "an amount such as 0 or 64Ki",
            Kind::Texts | Kind::Pairs(..) => "a list",
            Kind::Switches => "a section of names, each true or false",
        }
    }

    /// Whether the setting is a list of values.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Kind::Texts | Kind::Switches | Kind::Pairs(..))
    }

    /// Parses one value of a flag, as Go's flag packages do.
    pub(crate) fn parse(self, text: &str) -> Result<Value, String> {
        let named = |error: &str| {
            text.split_once('=').map(|(n, v)| (n.trim(), v.trim())).ok_or_else(|| error.to_owned())
        };
        Ok(match self {
            Kind::Bool => Value::Bool(parse_bool(text)?),
            Kind::Integer => {
                Value::Integer(text.parse().map_err(|e: std::num::ParseIntError| e.to_string())?)
            }
            Kind::Number => {
                Value::Number(text.parse().map_err(|e: std::num::ParseFloatError| e.to_string())?)
            }
            Kind::Text | Kind::Quantity | Kind::Texts => Value::Text(text.to_owned()),
            Kind::Duration | Kind::DurationOrNanos => {
                Value::Duration(parse_duration(text).map_err(|e| e.to_string())?)
            }
            Kind::Switches => {
                let (name, value) = named("not of the form Name=true or Name=false")?;
                Value::Named(name.to_owned(), Value::Bool(parse_bool(value)?).into())
            }
            Kind::Pairs(..) => {
                let (name, number) = named("not of the form pattern=N")?;
                let number = number.parse().map_err(|_| format!("{number:?} is not a whole number"))?;
                Value::Named(name.to_owned(), Value::Integer(number).into())
            }
        })
    }
}

/// Go's `strconv.ParseBool`.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("neither true nor false".to_owned()),
    }
}

/// The values that a file or a command line gives for settings, by path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Typed {
    values: BTreeMap<&'static str, Given<Value>>,
    /// Mistakes of a file that do not keep the rest of it from being used: unknown and duplicate fields.
    pub(crate) mistakes: Vec<ConfigError>,
}

impl Typed {
    /// Mistakes of a file that do not keep the rest of it from being used, in the order of their lines.
    pub fn mistakes(&self) -> &[ConfigError] {
        &self.mistakes
    }

    /// The value given for a setting.
    pub fn get(&self, path: &str) -> Option<&Given<Value>> {
        self.values.get(path)
    }

    /// Whether a value was given.
    pub fn has(&self, path: &str) -> bool {
        self.values.contains_key(path)
    }

    /// The text given for a setting, if it is not empty.
    pub fn text(&self, path: &str) -> Option<(&str, &Given<Value>)> {
        match self.get(path) {
            Some(given @ Given { value: Value::Text(text), .. }) if !text.is_empty() => Some((text, given)),
            _ => None,
        }
    }

    /// Sets the value for a setting, and replaces an earlier one.
    pub fn set(&mut self, path: &'static str, given: Given<Value>) {
        self.values.insert(path, given);
    }

    /// Copies the value of one setting, if there is one, to another setting.
    pub fn copy(&mut self, from: &str, to: &'static str) {
        if let Some(given) = self.values.get(from).cloned() {
            self.values.insert(to, given);
        }
    }

    /// Removes and returns a value.
    pub fn take(&mut self, path: &str) -> Option<Given<Value>> {
        self.values.remove(path)
    }

    /// Adds values that replace the present ones, except that an empty text keeps the present value, and lists are
    /// joined, those of `over` first.
    pub fn overlay(&mut self, over: Typed) {
        for (path, mut given) in over.values {
            match (&mut given.value, self.values.remove(path)) {
                (Value::Text(text), Some(below)) if text.is_empty() => given = below,
                (Value::List(items), Some(Given { value: Value::List(below), .. })) => items.extend(below),
                _ => {}
            }
            self.values.insert(path, given);
        }
    }

    /// Keeps the values of the settings for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&'static str) -> bool) {
        self.values.retain(|path, _| keep(path));
    }
}
