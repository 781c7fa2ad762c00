//! Taking fields out of one section of a configuration file.
//!
//! A [`Section`] is asked for each field it may have; whatever is left at the end is unknown. The names asked for
//! are also the names suggested for a misspelt one, so there is no second list of fields to keep true. A `null`
//! counts as absent, which is how Go and kubeadm write a setting that is not set.

use super::duration::parse_duration;
use super::error::{ConfigError, Origin, Problem, nearest};
use super::file::{Field, Given};
use super::tree::{Key, Node, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// A section being read.
pub(super) struct Section<'a> {
    /// `nftables.` for the fields of `nftables`, empty at the top.
    prefix: String,
    entries: Vec<(Key, Node)>,
    asked: Vec<&'static str>,
    file: &'a Arc<str>,
    errors: &'a mut Vec<ConfigError>,
}

impl<'a> Section<'a> {
    /// The section at the top, or nothing but an error if the document is no section at all.
    pub(super) fn root(root: Node, file: &'a Arc<str>, errors: &'a mut Vec<ConfigError>) -> Self {
        let entries = match root.value {
            Value::Map(entries) => entries,
            Value::Null => Vec::new(),
            other => {
                let problem = Problem::WrongType { expected: "a section of fields", found: other.kind() };
                let origin = Origin::File { name: file.clone(), line: root.line };
                errors.push(ConfigError { origin, field: String::new(), problem });
                Vec::new()
            }
        };
        Self::new(String::new(), entries, file, errors)
    }

    fn new(
        prefix: String,
        mut entries: Vec<(Key, Node)>,
        file: &'a Arc<str>,
        errors: &'a mut Vec<ConfigError>,
    ) -> Self {
        let mut seen: HashMap<String, u64> = HashMap::new();
        entries.retain(|(key, _)| {
            let Some(first_line) = seen.get(&key.name).copied() else {
                seen.insert(key.name.clone(), key.line);
                return true;
            };
            let origin = Origin::File { name: file.clone(), line: key.line };
            let field = format!("{prefix}{}", key.name);
            errors.push(ConfigError { origin, field, problem: Problem::Duplicate { first_line } });
            false
        });
        Section { prefix, entries, asked: Vec::new(), file, errors }
    }

    /// Reads a section inside this one.
    pub(super) fn section<T: Default>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> T {
        let Some((_, node)) = self.take(name) else { return T::default() };
        let Value::Map(entries) = node.value else {
            self.wrong_type(name, &node, "a section of fields");
            return T::default();
        };
        let mut inner =
            Section::new(format!("{}{name}.", self.prefix), entries, self.file, &mut *self.errors);
        let value = read(&mut inner);
        inner.finish();
        value
    }

    /// Reports every field that was not asked for.
    pub(super) fn finish(&mut self) {
        for (key, _) in std::mem::take(&mut self.entries) {
            let problem = Problem::UnknownField { nearest: nearest(&key.name, &self.asked) };
            self.error(key.line, &key.name, problem);
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, name: &'static str) -> Field<bool> {
        self.scalar(name, "true or false", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// Text; quoted or not, but not a number.
    pub(super) fn text(&mut self, name: &'static str) -> Field<String> {
        self.scalar(name, "text", |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// A whole number; its range is judged where its meaning is known.
    pub(super) fn integer(&mut self, name: &'static str) -> Field<i64> {
        self.scalar(name, "a whole number", |value| match value {
            // Saturates: no setting's range comes near the ends, so the range check still refuses it.
            Value::Int(number) => Some((*number).clamp(i64::MIN.into(), i64::MAX.into()) as i64),
            _ => None,
        })
    }

    /// A number with or without a fraction.
    pub(super) fn number(&mut self, name: &'static str) -> Field<f32> {
        self.scalar(name, "a number", |value| match value {
            Value::Int(number) => Some(*number as f32),
            Value::Float(number) => Some(*number as f32),
            _ => None,
        })
    }

    /// An amount such as `64Ki` or `0`, kept as text.
    pub(super) fn quantity(&mut self, name: &'static str) -> Field<String> {
        self.scalar(name, "an amount such as 0 or 64Ki", |value| match value {
            Value::Text(text) => Some(text.clone()),
            Value::Int(number) => Some(number.to_string()),
            _ => None,
        })
    }

    /// A duration in Go's syntax.
    pub(super) fn duration(&mut self, name: &'static str) -> Field<Duration> {
        let Given { value: text, origin } =
            self.scalar(name, "a duration in quotes or letters, such as 30s", |value| match value {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            })?;
        self.parsed_duration(name, &text, origin)
    }

    /// A duration, or a number of nanoseconds, as `logging.flushFrequency` alone may be written.
    pub(super) fn duration_or_nanos(&mut self, name: &'static str) -> Field<Duration> {
        let Given { value: text, origin } =
            self.scalar(name, "a duration such as 5s, or nanoseconds", |value| match value {
                Value::Text(text) => Some(text.clone()),
                Value::Int(nanos) => Some(format!("{nanos}ns")),
                _ => None,
            })?;
        self.parsed_duration(name, &text, origin)
    }

    /// A list of texts, each with its own line.
    pub(super) fn texts(&mut self, name: &'static str) -> Vec<Given<String>> {
        let mut texts = Vec::new();
        for (index, item) in self.list(name).into_iter().enumerate() {
            match item.value {
                Value::Text(value) => texts.push(self.given(item.line, value)),
                other => {
                    let problem = Problem::WrongType { expected: "text", found: other.kind() };
                    self.error(item.line, &format!("{name}[{index}]"), problem);
                }
            }
        }
        texts
    }

    /// A list of sections.
    pub(super) fn sections<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for (index, item) in self.list(name).into_iter().enumerate() {
            let field = format!("{name}[{index}]");
            let Value::Map(entries) = item.value else {
                self.wrong_type(&field, &item, "a section of fields");
                continue;
            };
            let mut inner =
                Section::new(format!("{}{field}.", self.prefix), entries, self.file, &mut *self.errors);
            values.extend(read(&mut inner));
            inner.finish();
        }
        values
    }

    /// A map whose keys are free and whose values are `true` or `false`.
    pub(super) fn gates(&mut self, name: &'static str) -> BTreeMap<String, Given<bool>> {
        let mut gates = BTreeMap::new();
        let Some((_, node)) = self.take(name) else { return gates };
        let Value::Map(entries) = node.value else {
            self.wrong_type(name, &node, "a section of names, each true or false");
            return gates;
        };
        let mut inner =
            Section::new(format!("{}{name}.", self.prefix), entries, self.file, &mut *self.errors);
        for (key, node) in std::mem::take(&mut inner.entries) {
            match node.value {
                Value::Bool(value) => {
                    gates.insert(key.name, inner.given(node.line, value));
                }
                _ => inner.wrong_type(&key.name, &node, "true or false"),
            }
        }
        gates
    }

    fn list(&mut self, name: &'static str) -> Vec<Node> {
        let Some((_, node)) = self.take(name) else { return Vec::new() };
        let Value::List(items) = node.value else {
            self.wrong_type(name, &node, "a list");
            return Vec::new();
        };
        items
    }

    fn scalar<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Field<T> {
        let (_, node) = self.take(name)?;
        match read(&node.value) {
            Some(value) => Some(self.given(node.line, value)),
            None => {
                self.wrong_type(name, &node, expected);
                None
            }
        }
    }

    fn parsed_duration(&mut self, name: &'static str, text: &str, origin: Origin) -> Field<Duration> {
        match parse_duration(text) {
            Ok(value) => Some(Given { value, origin }),
            Err(why) => {
                let problem = Problem::Invalid { value: text.to_owned(), why: why.to_string() };
                self.errors.push(ConfigError { origin, field: format!("{}{name}", self.prefix), problem });
                None
            }
        }
    }

    fn take(&mut self, name: &'static str) -> Option<(Key, Node)> {
        self.asked.push(name);
        let index = self.entries.iter().position(|(key, _)| key.name == name)?;
        let (key, node) = self.entries.remove(index);
        (node.value != Value::Null).then_some((key, node))
    }

    fn given<T>(&self, line: u64, value: T) -> Given<T> {
        Given { value, origin: Origin::File { name: self.file.clone(), line } }
    }

    fn wrong_type(&mut self, name: &str, node: &Node, expected: &'static str) {
        let problem = Problem::WrongType { expected, found: node.value.kind() };
        self.error(node.line, name, problem);
    }

    /// Reports a mistake in one field of this section.
    pub(super) fn error(&mut self, line: u64, name: &str, problem: Problem) {
        let origin = Origin::File { name: self.file.clone(), line };
        self.errors.push(ConfigError { origin, field: format!("{}{name}", self.prefix), problem });
    }
}
