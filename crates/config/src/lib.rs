//! One definition per setting: a program describes its settings in a [`Table`], and everything else is made from it.
//!
//! Two steps, each a pure function. *As typed*: [`Table::read`] turns the text of a YAML or JSON file, and
//! [`Table::typed`] a command line, into [`Typed`]: the values that were given, each with its line or flag. *As
//! meant*: [`Table::assign`] puts them into the program's own configuration type, where the defaults already are.
//! The same table prints a configuration, compares two of them, builds the flags and their help, and writes the
//! reference page.
//!
//! What always holds: no input causes a panic, and all mistakes are reported at once with file, line and field. This
//! crate opens no files: it is handed their text.

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

pub use check::Checks;
pub use duration::{InvalidDuration, format_duration, parse_duration};
pub use error::{ConfigError, Origin, Problem};
pub use flags::normalize_args;
pub use setting::{Effect, Lens, Setting, Zero};
pub use table::{Changes, Table};
pub use value::{Given, Kind, Typed, Value, parse_bool};
