//! The definition of one setting: its path in a file, its flag, its kind, default, help and effect, and the field of
//! the configuration that it sets.
//!
//! Each kind of value has a constructor, which takes the field as a [`Lens`] and the rules for valid values; methods
//! add the rest.

use crate::check::{Checks, within};
use crate::duration::format_duration;
use crate::value::{Given, Kind, Value};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A field of a configuration, by its two accessors.
pub struct Lens<C, T> {
    /// Borrows the field.
    pub get: fn(&C) -> &T,
    /// Borrows the field mutably.
    pub get_mut: fn(&mut C) -> &mut T,
}

/// When a changed setting takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// While running.
    Live,
    /// After a restart.
    Restart,
    /// Never: the setting is accepted because files of another program have it.
    Unused,
}

/// The meaning of zero for a number or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zero {
    /// A value like any other.
    Valid,
    /// The same as no value: Go writes it for a setting that is not set.
    Unset,
    /// The same as no value in a file; an error on the command line, where it was typed on purpose.
    UnsetInFile,
    /// An error.
    Invalid,
}

/// A setting's flag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    /// With its dashes.
    pub(crate) name: &'static str,
    pub(crate) value_name: &'static str,
    pub(crate) short: Option<char>,
    pub(crate) hidden: bool,
}

type Assign<C> = Box<dyn Fn(&mut C, &Given<Value>, &mut Checks) + Send + Sync>;
type Reset<C> = Box<dyn Fn(&mut C) + Send + Sync>;
type Print<C> = Box<dyn Fn(&C) -> Json + Send + Sync>;
type Copy<C> = Box<dyn Fn(&mut C, &C) + Send + Sync>;

/// The definition of one setting of a configuration `C`.
pub struct Setting<C> {
    /// The path in a file, `nftables.masqueradeBit`; the flag with its dashes, if a file cannot have the setting.
    pub path: &'static str,
    /// When a change takes effect.
    pub effect: Effect,
    /// Whether the flag takes effect together with a file.
    pub with_file: bool,
    pub(crate) kind: Kind,
    pub(crate) flag: Option<Flag>,
    pub(crate) heading: &'static str,
    pub(crate) help: &'static str,
    pub(crate) default_text: Option<&'static str>,
    pub(crate) zero: Zero,
    /// The field of a file that replaces a deprecated flag.
    pub(crate) replacement: Option<&'static str>,
    pub(crate) reset: Option<Reset<C>>,
    pub(crate) assign: Option<Assign<C>>,
    pub(crate) print: Option<Print<C>>,
    pub(crate) copy: Option<Copy<C>>,
}

impl<C> fmt::Debug for Setting<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting").field("path", &self.path).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<C: 'static> Setting<C> {
    fn new(path: &'static str, kind: Kind) -> Self {
        Setting {
            path,
            effect: Effect::Unused,
            with_file: false,
            kind,
            flag: None,
            heading: "",
            help: "",
            default_text: None,
            zero: Zero::Valid,
            replacement: None,
            reset: None,
            assign: None,
            print: None,
            copy: None,
        }
    }

    /// A setting with a field of type `T`. `parse` makes a `T` from a value, `print` prints it.
    fn typed<T: Clone + Send + Sync + 'static>(
        path: &'static str,
        kind: Kind,
        lens: Lens<C, T>,
        default: T,
        parse: impl Fn(&Given<Value>, &mut Checks) -> Option<T> + Send + Sync + 'static,
        print: impl Fn(&T) -> Json + Send + Sync + 'static,
    ) -> Self {
        let Lens { get, get_mut } = lens;
        Setting {
            effect: Effect::Restart,
            reset: Some(Box::new(move |config| *get_mut(config) = default.clone())),
            assign: Some(Box::new(move |config, given, checks| {
                if let Some(value) = parse(given, checks) {
                    *get_mut(config) = value;
                }
            })),
            print: Some(Box::new(move |config| print(get(config)))),
            copy: Some(Box::new(move |to, from| *get_mut(to) = get(from).clone())),
            ..Setting::new(path, kind)
        }
    }

    /// `true` or `false`.
    pub fn switch(path: &'static str, lens: Lens<C, bool>, default: bool) -> Self {
        let parse = |given: &Given<Value>, _: &mut Checks| match given.value {
            Value::Bool(value) => Some(value),
            _ => None,
        };
        Self::typed(path, Kind::Bool, lens, default, parse, |value| json!(value))
    }

    /// A whole number within a range.
    pub fn integer<T>(path: &'static str, lens: Lens<C, T>, default: T, range: RangeInclusive<i64>) -> Self
    where
        T: TryFrom<i64> + Into<i64> + Clone + Send + Sync + 'static,
    {
        let parse = move |given: &Given<Value>, checks: &mut Checks| {
            let Value::Integer(number) = given.value else { return None };
            within(number, &range).map_err(|reason| checks.invalid(given, reason)).ok()
        };
        Self::typed(path, Kind::Integer, lens, default, parse, |number| json!(number.clone().into()))
    }

    /// A finite number with or without a fraction.
    pub fn number(path: &'static str, lens: Lens<C, f32>, default: f32) -> Self {
        let parse = |given: &Given<Value>, checks: &mut Checks| match given.value {
            Value::Number(number) if number.is_finite() => Some(number),
            _ => {
                checks.invalid(given, "is not a finite number");
                None
            }
        };
        Self::typed(path, Kind::Number, lens, default, parse, |number| json!(number))
    }

    /// Text that `parse` validates, without leading and trailing spaces.
    pub fn text<T: Clone + Send + Sync + 'static>(
        path: &'static str,
        lens: Lens<C, T>,
        default: T,
        parse: fn(&str) -> Result<T, String>,
        print: fn(&T) -> String,
    ) -> Self {
        let parse = move |given: &Given<Value>, checks: &mut Checks| {
            let Value::Text(text) = &given.value else { return None };
            parse(text.trim()).map_err(|reason| checks.invalid(given, reason)).ok()
        };
        Self::typed(path, Kind::Text, lens, default, parse, move |value| json!(print(value)))
    }

    /// Any text; `None` is printed as empty text.
    pub fn any_text(path: &'static str, lens: Lens<C, Option<String>>) -> Self {
        let (parse, print) = (
            |text: &str| Ok(Some(text.to_owned())),
            |text: &Option<String>| text.clone().unwrap_or_default(),
        );
        Self::text(path, lens, None, parse, print)
    }

    /// A duration.
    pub fn duration(path: &'static str, lens: Lens<C, Duration>, default: Duration) -> Self {
        Self::typed(path, Kind::Duration, lens, default, duration_of, |time| json!(format_duration(*time)))
    }

    /// A duration; zero means none.
    pub fn optional_duration(
        path: &'static str,
        lens: Lens<C, Option<Duration>>,
        default: Option<Duration>,
    ) -> Self {
        let parse = |given: &Given<Value>, checks: &mut Checks| {
            duration_of(given, checks).map(|time| Some(time).filter(|time| !time.is_zero()))
        };
        let print = |time: &Option<Duration>| json!(format_duration(time.unwrap_or_default()));
        Self::typed(path, Kind::Duration, lens, default, parse, print)
    }

    /// A list of texts that `parse` validates; the default is an empty list.
    pub fn texts<T: Clone + Send + Sync + 'static>(
        path: &'static str,
        lens: Lens<C, Vec<T>>,
        parse: fn(&str) -> Result<T, String>,
        print: fn(&T) -> String,
    ) -> Self {
        let parse = move |given: &Given<Value>, checks: &mut Checks| {
            let mut items = Vec::new();
            for (index, item, text) in given.texts() {
                match parse(text.trim()) {
                    Ok(value) => items.push(value),
                    Err(reason) => checks.invalid_item(item, &format!("[{index}]"), reason),
                }
            }
            Some(items)
        };
        let print = move |items: &Vec<T>| items.iter().map(print).collect();
        Self::typed(path, Kind::Texts, lens, Vec::new(), parse, print)
    }

    /// Arbitrary names, each `true` or `false`.
    pub fn switches(path: &'static str, lens: Lens<C, BTreeMap<String, bool>>) -> Self {
        let parse = |given: &Given<Value>, _: &mut Checks| {
            let switch = |item: &Given<Value>| match &item.value {
                Value::Named(name, on) => Some((name.clone(), **on == Value::Bool(true))),
                _ => None,
            };
            Some(given.items().iter().filter_map(switch).collect())
        };
        Self::typed(path, Kind::Switches, lens, BTreeMap::new(), parse, |switches| json!(switches))
    }

    /// Names with a number each; in a file, a list of sections with the two fields `name` and `number`.
    pub fn pairs(
        path: &'static str,
        lens: Lens<C, Vec<(String, u32)>>,
        name: &'static str,
        number: &'static str,
        range: RangeInclusive<i64>,
    ) -> Self {
        let parse = move |given: &Given<Value>, checks: &mut Checks| {
            let mut pairs = Vec::new();
            for (index, item) in given.items().iter().enumerate() {
                let Value::Named(name, value) = &item.value else { continue };
                let Value::Integer(value) = **value else { continue };
                match within(value, &range) {
                    Ok(value) => pairs.push((name.clone(), value)),
                    Err(reason) => {
                        let item = Given { value: Value::Integer(value), ..item.clone() };
                        checks.invalid_item(&item, &format!("[{index}].{number}"), reason);
                    }
                }
            }
            Some(pairs)
        };
        let print = move |pairs: &Vec<(String, u32)>| {
            pairs.iter().map(|(pattern, value)| json!({ name: pattern, number: value })).collect()
        };
        Self::typed(path, Kind::Pairs(name, number), lens, Vec::new(), parse, print)
    }

    /// A setting that depends on others: the program derives its value, the table reads and prints it.
    pub fn derived(path: &'static str, kind: Kind, print: fn(&C) -> Json) -> Self {
        Setting { effect: Effect::Restart, print: Some(Box::new(print)), ..Setting::new(path, kind) }
    }

    /// A setting that is accepted and has no effect.
    pub fn unused(path: &'static str, kind: Kind) -> Self {
        Setting::new(path, kind).help("Accepted and not used.")
    }

    /// Adds a flag; `value_name` stands for its value in the help.
    pub fn flag(self, name: &'static str, value_name: &'static str) -> Self {
        Setting { flag: Some(Flag { name, value_name, short: None, hidden: false }), ..self }
    }

    /// Adds a one-letter form of the flag.
    pub fn short(mut self, letter: char) -> Self {
        self.flag = self.flag.map(|flag| Flag { short: Some(letter), ..flag });
        self
    }

    /// Marks the flag as deprecated: the help does not show it, and a file has `field` instead.
    pub fn deprecated_for(mut self, field: &'static str) -> Self {
        self.flag = self.flag.map(|flag| Flag { hidden: true, ..flag });
        Setting { replacement: Some(field), ..self }
    }

    /// The description in the help and on the reference page.
    pub fn help(self, help: &'static str) -> Self {
        Setting { help, ..self }
    }

    /// A description of the default, where it depends on other settings.
    pub fn default_text(self, text: &'static str) -> Self {
        Setting { default_text: Some(text), ..self }
    }

    /// The meaning of zero.
    pub fn zero(self, zero: Zero) -> Self {
        Setting { zero, ..self }
    }

    /// A change takes effect while running.
    pub fn live(self) -> Self {
        Setting { effect: Effect::Live, ..self }
    }

    /// Neither the setting nor a change has an effect: another program has it.
    pub fn without_effect(self) -> Self {
        Setting { effect: Effect::Unused, ..self }
    }

    /// The flag takes effect together with a file.
    pub fn with_file(self) -> Self {
        Setting { with_file: true, ..self }
    }

    /// A file may give the duration as a whole number of nanoseconds.
    pub fn or_nanos(self) -> Self {
        Setting { kind: Kind::DurationOrNanos, ..self }
    }

    /// Sets how the value of a derived setting is copied from another configuration.
    pub fn copied(self, copy: fn(&mut C, &C)) -> Self {
        Setting { copy: Some(Box::new(copy)), ..self }
    }

    /// Whether a file can have the setting.
    pub fn in_file(&self) -> bool {
        !self.path.starts_with('-')
    }

    /// The field of a file that has the effect of the flag.
    pub fn field(&self) -> &'static str {
        self.replacement.unwrap_or(self.path)
    }

    /// The flag with its dashes, if there is one.
    pub fn flag_name(&self) -> Option<&'static str> {
        self.flag.map(|flag| flag.name)
    }

    /// Assigns a value to its field if it is valid; an empty text is ignored.
    pub(crate) fn assign(&self, config: &mut C, given: &Given<Value>, checks: &mut Checks) {
        let Some(assign) = &self.assign else { return };
        if given.value == Value::Text(String::new()) {
            return;
        }
        if given.value.is_zero() {
            match self.zero {
                Zero::Valid => {}
                Zero::Unset => return,
                Zero::UnsetInFile if !given.by_flag() => return,
                Zero::UnsetInFile | Zero::Invalid => {
                    return checks.invalid(given, "must be greater than zero");
                }
            }
        }
        assign(config, given, checks);
    }
}

fn duration_of(given: &Given<Value>, _: &mut Checks) -> Option<Duration> {
    match given.value {
        Value::Duration(duration) => Some(duration),
        _ => None,
    }
}

impl Given<Value> {
    /// The items of a list; empty for other values.
    pub fn items(&self) -> &[Given<Value>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The texts of a list with their indices.
    pub fn texts(&self) -> impl Iterator<Item = (usize, &Given<Value>, &str)> {
        self.items().iter().enumerate().filter_map(|(index, item)| match &item.value {
            Value::Text(text) => Some((index, item, text.as_str())),
            _ => None,
        })
    }
}
