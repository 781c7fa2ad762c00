//! The table of all settings of a program: reads files, assigns values, prints and compares configurations.

use crate::check::Checks;
use crate::error::ConfigError;
use crate::read::{Head, read};
use crate::setting::{Effect, Setting};
use crate::value::{Given, Kind, Typed, Value};
use serde_json::{Map, Value as Json};

/// All settings of a configuration `C`, in the order of the help and of the reference page.
#[derive(Debug)]
pub struct Table<C> {
    head: Head,
    settings: Vec<Setting<C>>,
}

/// The settings that differ between two configurations, by when a change takes effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Settings that take effect while running.
    pub applied: Vec<&'static str>,
    /// Settings that take effect after a restart.
    pub needs_restart: Vec<&'static str>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.needs_restart.is_empty()
    }
}

impl<C: 'static> Table<C> {
    /// A table. `head` are the fields that a file must have, with their values.
    pub fn new(head: &'static [(&'static str, &'static str)]) -> Self {
        Table { head, settings: Vec::new() }
    }

    /// Adds settings under a heading.
    #[must_use]
    pub fn group(mut self, heading: &'static str, settings: impl IntoIterator<Item = Setting<C>>) -> Self {
        self.settings.extend(settings.into_iter().map(|setting| Setting { heading, ..setting }));
        self
    }

    /// The settings.
    pub fn settings(&self) -> &[Setting<C>] {
        &self.settings
    }

    /// Reads the text of a file, YAML or JSON, as far as possible. Returns the values, and the errors of those that cannot
    /// be read.
    pub fn read_partly(
        &self,
        file_name: &str,
        text: &str,
    ) -> Result<(Typed, Vec<ConfigError>), Vec<ConfigError>> {
        let in_file = self.settings.iter().filter(|setting| setting.in_file());
        let fields: Vec<(&'static str, Kind)> = in_file.map(|setting| (setting.path, setting.kind)).collect();
        read(file_name, text, self.head, &fields)
    }

    /// Sets every setting to its default; derived settings are not changed.
    pub fn set_defaults(&self, config: &mut C) {
        self.settings.iter().filter_map(|setting| setting.reset.as_ref()).for_each(|reset| reset(config));
    }

    /// Assigns the given values to a configuration. Invalid values are added to `checks`.
    pub fn assign(&self, config: &mut C, typed: &Typed, checks: &mut Checks) {
        for setting in &self.settings {
            if let Some(given) = typed.get(setting.path) {
                setting.assign(config, given, checks);
            }
        }
    }

    /// The flags of a configuration, with their values.
    pub fn flag_values(&self, config: &C) -> Vec<(&'static str, String)> {
        let value = |setting: &Setting<C>| match setting.print.as_ref()?(config) {
            Json::String(text) => Some(text),
            other => Some(other.to_string()),
        };
        let flags = self.settings.iter().filter_map(|s| Some((s.flag_name()?, value(s)?)));
        flags.collect()
    }

    /// The given values of settings without effect, except those that Go writes for a setting that is not set.
    pub fn unused<'t>(&self, typed: &'t Typed) -> Vec<&'t Given<Value>> {
        let is_unused = |s: &&Setting<C>| s.effect == Effect::Unused && s.replacement.is_none();
        let unused = self.settings.iter().filter(is_unused);
        let given = unused.filter_map(|setting| typed.get(setting.path));
        given.filter(|given| !given.value.is_unset()).collect()
    }

    /// Prints a configuration as a file that [`Table::read_partly`] reads, with every setting.
    pub fn to_json(&self, config: &C) -> Json {
        let mut root = Map::new();
        root.extend(self.head.iter().map(|(name, value)| ((*name).to_owned(), Json::from(*value))));
        for setting in self.settings.iter().filter(|setting| setting.in_file()) {
            let Some(print) = &setting.print else { continue };
            let mut map = &mut root;
            let mut names = setting.path.split('.').peekable();
            while let Some(name) = names.next() {
                if names.peek().is_none() {
                    map.insert(name.to_owned(), print(config));
                    break;
                }
                let inner = map.entry(name).or_insert_with(|| Json::Object(Map::new()));
                // Always an object: no setting's path is the beginning of another setting's path.
                let Json::Object(inner) = inner else { break };
                map = inner;
            }
        }
        Json::Object(root)
    }

    /// The settings that differ.
    pub fn changes(&self, old: &C, new: &C) -> Changes {
        let mut changes = Changes::default();
        for setting in &self.settings {
            let Some(print) = &setting.print else { continue };
            if print(old) == print(new) {
                continue;
            }
            match setting.effect {
                Effect::Live => changes.applied.push(setting.path),
                Effect::Restart => changes.needs_restart.push(setting.path),
                Effect::Unused => {}
            }
        }
        changes
    }

    /// Reverts the changes that need a restart: these settings get the values that they have in `running`.
    pub fn keep_until_restart(&self, running: &C, new: &mut C) {
        let kept = self.settings.iter().filter(|setting| setting.effect != Effect::Live);
        kept.filter_map(|setting| setting.copy.as_ref()).for_each(|copy| copy(new, running));
    }

    /// The default of a setting as the help shows it; empty for no value, `false` and an empty list.
    pub(crate) fn default_text(&self, setting: &Setting<C>, defaults: &C) -> String {
        let printed = setting.print.as_ref().map(|print| print(defaults));
        match (setting.default_text, printed) {
            (Some(text), _) => text.to_owned(),
            (None, Some(Json::String(text))) if setting.kind == Kind::Duration => short_duration(&text),
            (None, Some(Json::String(text))) => text,
            (None, Some(Json::Number(number))) => number.to_string(),
            (None, Some(Json::Bool(true))) => "true".to_owned(),
            _ => String::new(),
        }
    }
}

/// Shortens `24h0m0s` to `24h`.
fn short_duration(text: &str) -> String {
    let text = text.strip_suffix("m0s").map_or(text.to_owned(), |rest| format!("{rest}m"));
    text.strip_suffix("h0m").map_or(text.clone(), |rest| format!("{rest}h"))
}
