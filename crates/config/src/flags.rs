//! Builds flags from the table, and reads their values as pflag does.
//!
//! `--masquerade-all` means `--masquerade-all=true`, lists are given with commas or by repetition, the last of several
//! values applies (the command needs clap's `args_override_self`), and [`normalize_args`] allows underscores instead of
//! dashes.

use crate::error::Origin;
use crate::setting::Setting;
use crate::table::Table;
use crate::value::{Given, Kind, Typed, Value};
use clap::{Arg, ArgAction, ArgMatches};
use std::ffi::OsString;

impl<C: 'static> Table<C> {
    /// The flags, with help and defaults.
    pub fn args(&self, defaults: &C) -> Vec<Arg> {
        self.settings().iter().filter_map(|setting| self.arg(setting, defaults)).collect()
    }

    fn arg(&self, setting: &Setting<C>, defaults: &C) -> Option<Arg> {
        let (flag, kind) = (setting.flag?, setting.kind);
        let help = match self.default_text(setting, defaults) {
            default if default.is_empty() => setting.help.to_owned(),
            default => format!("{} [default: {default}]", setting.help),
        };
        let long = flag.name.trim_start_matches('-');
        let arg = Arg::new(long)
            .long(long)
            .short(flag.short)
            .help(help)
            .help_heading(setting.heading)
            .value_name(flag.value_name)
            .hide(flag.hidden)
            .value_parser(move |text: &str| match text {
                "" if kind.is_list() => Ok(Value::Text(String::new())),
                text => kind.parse(text),
            });
        Some(match kind {
            Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            Kind::Integer | Kind::Number => arg.allow_negative_numbers(true),
            _ if kind.is_list() => arg.value_delimiter(',').action(ArgAction::Append),
            _ => arg,
        })
    }

    /// The values that a command line gives.
    pub fn typed(&self, matches: &ArgMatches) -> Typed {
        let mut typed = Typed::default();
        for setting in self.settings() {
            let Some(flag) = setting.flag_name() else { continue };
            let Ok(Some(values)) = matches.try_get_many::<Value>(flag.trim_start_matches('-')) else {
                continue;
            };
            let given = |value| Given { value, field: setting.path, origin: Origin::Flag(flag) };
            let mut values: Vec<Value> = values.cloned().collect();
            if values.iter().all(is_empty) || setting.kind != Kind::Texts {
                // An empty value is an empty list, and an empty pair is none, as with pflag.
                values.retain(|value| !setting.kind.is_list() || !is_empty(value));
            }
            let value = match setting.kind.is_list() {
                true => Some(Value::List(values.into_iter().map(given).collect())),
                false => values.pop(),
            };
            if let Some(value) = value {
                typed.set(setting.path, given(value));
            }
        }
        typed
    }
}

fn is_empty(value: &Value) -> bool {
    *value == Value::Text(String::new())
}

/// Turns underscores in the names of flags into dashes: `--cluster_cidr` is `--cluster-cidr`. Values and all arguments
/// after `--` are not changed.
pub fn normalize_args(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut after_separator = false;
    args.into_iter()
        .map(|arg| {
            after_separator |= arg == "--";
            match arg.to_str() {
                Some(text) if !after_separator && text.starts_with("--") => {
                    let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
                    format!("{}{value}", name.replace('_', "-")).into()
                }
                _ => arg,
            }
        })
        .collect()
}
