//! One definition per setting: a program describes its settings in a [`Table`], and this crate does the rest.
//!
//! There are two steps, each a pure function. First, [`Table::read_partly`] turns the text of a YAML or JSON file, and
//! [`Table::typed`] a command line, into [`Typed`]: the values as typed, each with its line or flag. Then
//! [`Table::assign`] checks the values and assigns them to the program's own configuration type, which already has the
//! defaults. The same table prints a configuration, compares two of them, builds the flags and their help, and writes
//! the reference page.
//!
//! Invariants: no input causes a panic, and all errors are reported at once with file, line and field. This crate opens
//! no files: the caller passes their text.

mod check;
mod duration;
mod error;
mod flags;
mod markdown;
mod read;
mod setting;
mod table;
mod tree;
mod value;

pub use check::{Checks, in_order};
pub use duration::{InvalidDuration, format_duration, parse_duration};
pub use error::{ConfigError, Origin, Problem, nearest as nearest_name};
pub use flags::normalize_args;
pub use setting::{Effect, Lens, Setting, Zero};
pub use table::{Changes, Table};
pub use value::{Given, Kind, Typed, Value, parse_bool};
