//! Reads a file: the value of every field in the table has to be of the right kind.
//!
//! A field that is not in the table, or that occurs twice, is a mistake ([`Typed::mistakes`]) and not an error: a file of
//! an older or newer release can be used. The names in the table are also the names suggested for a misspelt one. A
//! `null`, which Go writes for a setting that is not set, and an empty list are treated as absent.

use crate::check::in_order;
use crate::duration::parse_duration;
use crate::error::{ConfigError, Origin, Problem, nearest};
use crate::tree::{self, Key, Node, Value as Tree};
use crate::value::{Given, Kind, Typed, Value};
use std::collections::HashMap;
use std::sync::Arc;

const SECTION: &str = "a section of fields";

/// Fields that a file must have, with their only valid values.
pub(crate) type Head = &'static [(&'static str, &'static str)];

/// Reads the text of a file as far as possible: the values that could be read, and the errors of the others, in the order
/// of their lines. A file of another kind, or with a syntax error, cannot be read at all.
pub(crate) fn read(
    file_name: &str,
    text: &str,
    head: Head,
    fields: &[(&'static str, Kind)],
) -> Result<(Typed, Vec<ConfigError>), Vec<ConfigError>> {
    let file: Arc<str> = file_name.into();
    let root = tree::read(text).map_err(|malformed| {
        let origin = Origin::File { name: file.clone(), line: malformed.line.unwrap_or(0) };
        vec![ConfigError { origin, field: String::new(), problem: Problem::Syntax(malformed.message) }]
    })?;
    let mut reader = Reader { file, head, fields, errors: Vec::new(), typed: Typed::default() };
    if !reader.root(root) {
        return Err(in_order(reader.errors));
    }
    let Reader { errors, mut typed, .. } = reader;
    typed.mistakes = in_order(typed.mistakes);
    Ok((typed, in_order(errors)))
}

struct Reader<'a> {
    file: Arc<str>,
    head: Head,
    fields: &'a [(&'static str, Kind)],
    errors: Vec<ConfigError>,
    typed: Typed,
}

impl Reader<'_> {
    /// False if the file is of another kind.
    fn root(&mut self, root: Node) -> bool {
        let line = root.line;
        let entries = match root.value {
            Tree::Null => Vec::new(),
            value => self.section_entries("", Node { line, value }).unwrap_or_default(),
        };
        for (name, expected) in self.head {
            self.must_be(name, expected, entries.iter().find(|(key, _)| key.name == *name));
        }
        if !self.errors.is_empty() {
            return false;
        }
        let is_head = |key: &Key| self.head.iter().any(|(name, _)| *name == key.name);
        let entries = entries.into_iter().filter(|(key, _)| !is_head(key)).collect();
        self.section("", entries);
        true
    }

    /// Rejects a file of another kind, for example a Deployment that was mounted by mistake.
    fn must_be(&mut self, name: &str, expected: &'static str, entry: Option<&(Key, Node)>) {
        let Some((_, node)) = entry.filter(|(_, node)| node.value != Tree::Null) else {
            return self.error(1, name, Problem::Missing { expected });
        };
        match &node.value {
            Tree::Text(text) if text == expected => {}
            Tree::Text(text) => {
                let reason = format!("must be {expected:?}");
                self.error(node.line, name, Problem::Invalid { value: text.clone(), reason });
            }
            other => self.wrong_type(node.line, name, "text", other),
        }
    }

    /// Reads the fields of a section. Their paths begin with `prefix`.
    fn section(&mut self, prefix: &str, entries: Vec<(Key, Node)>) {
        for (key, node) in entries {
            let path = format!("{prefix}{}", key.name);
            if let Some((field, kind)) = self.fields.iter().find(|(field, _)| *field == path).copied() {
                let line = node.line;
                let value = self.value(field, kind, node);
                if let Some(value) = value.filter(|value| *value != Value::List(Vec::new())) {
                    let given = self.given(field, line, value);
                    self.typed.set(field, given);
                }
            } else if self.names(&format!("{path}.")).next().is_some() {
                let inner = match node.value {
                    Tree::Null => None,
                    _ => self.section_entries(&path, node),
                };
                self.section(&format!("{path}."), inner.unwrap_or_default());
            } else {
                let mut names: Vec<&'static str> = self.names(prefix).collect();
                if prefix.is_empty() {
                    names.extend(self.head.iter().map(|(name, _)| *name));
                }
                let nearest = nearest(&key.name, &names);
                self.mistake(key.line, &path, Problem::UnknownField { nearest });
            }
        }
    }

    /// The names of the fields and sections in a section.
    fn names(&self, prefix: &str) -> impl Iterator<Item = &'static str> {
        self.fields.iter().filter_map(move |(field, _)| field.strip_prefix(prefix)?.split('.').next())
    }

    /// A value of the kind that its field takes.
    fn value(&mut self, field: &'static str, kind: Kind, node: Node) -> Option<Value> {
        Some(match (kind, node.value) {
            (_, Tree::Null) => return None,
            (Kind::Bool, Tree::Bool(value)) => Value::Bool(value),
            // Saturates. No setting's valid range reaches these limits, so the range check still rejects the value.
            (Kind::Integer, Tree::Int(number)) => {
                Value::Integer(number.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
            }
            (Kind::Number, Tree::Int(number)) => Value::Number(number as f32),
            (Kind::Number, Tree::Float(number)) => Value::Number(number as f32),
            (Kind::Text | Kind::Quantity, Tree::Text(text)) => Value::Text(text),
            (Kind::Quantity, Tree::Int(number)) => Value::Text(number.to_string()),
            (Kind::Duration | Kind::DurationOrNanos, Tree::Text(text)) => {
                return self.duration(field, node.line, text);
            }
            (Kind::DurationOrNanos, Tree::Int(nanos)) => {
                return self.duration(field, node.line, format!("{nanos}ns"));
            }
            (Kind::Texts, Tree::List(items)) => Value::List(self.texts(field, items)),
            (Kind::Switches, Tree::Map(entries)) => Value::List(self.switches(field, entries)),
            (Kind::Pairs(name, number), Tree::List(items)) => {
                Value::List(self.pairs(field, [(name, Kind::Text), (number, Kind::Integer)], items))
            }
            (_, other) => {
                self.wrong_type(node.line, field, kind.expected(), &other);
                return None;
            }
        })
    }

    fn duration(&mut self, field: &'static str, line: u64, text: String) -> Option<Value> {
        match parse_duration(&text) {
            Ok(duration) => Some(Value::Duration(duration)),
            Err(reason) => {
                self.error(line, field, Problem::Invalid { value: text, reason: reason.to_string() });
                None
            }
        }
    }

    /// A list of texts, each with its own line.
    fn texts(&mut self, field: &'static str, items: Vec<Node>) -> Vec<Given<Value>> {
        let mut texts = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            match item.value {
                Tree::Text(text) => texts.push(self.given(field, item.line, Value::Text(text))),
                other => self.wrong_type(item.line, &format!("{field}[{index}]"), "text", &other),
            }
        }
        texts
    }

    /// A section with arbitrary names, each `true` or `false`.
    fn switches(&mut self, field: &'static str, entries: Vec<(Key, Node)>) -> Vec<Given<Value>> {
        let mut switches = Vec::new();
        for (key, node) in self.without_duplicates(&format!("{field}."), entries) {
            match node.value {
                Tree::Bool(on) => {
                    let named = Value::Named(key.name, Value::Bool(on).into());
                    switches.push(self.given(field, node.line, named));
                }
                other => {
                    let path = format!("{field}.{}", key.name);
                    self.wrong_type(node.line, &path, Kind::Bool.expected(), &other);
                }
            }
        }
        switches
    }

    /// A list of sections with a name and a number each.
    fn pairs(
        &mut self,
        field: &'static str,
        fields: [(&'static str, Kind); 2],
        items: Vec<Node>,
    ) -> Vec<Given<Value>> {
        let [(name, _), (number, _)] = fields;
        let mut pairs = Vec::new();
        for (index, item) in items.into_iter().enumerate() {
            let line = item.line;
            let (file, errors) = (self.file.clone(), Vec::new());
            let mut inner = Reader { file, head: &[], fields: &fields, errors, typed: Typed::default() };
            inner.root(item);
            let within_item = |error: ConfigError| {
                let path = format!("{field}[{index}].{}", error.field);
                ConfigError { field: path.trim_end_matches('.').to_owned(), ..error }
            };
            self.errors.extend(inner.errors.into_iter().map(within_item));
            self.typed
                .mistakes
                .extend(std::mem::take(&mut inner.typed.mistakes).into_iter().map(within_item));
            let number = inner.typed.take(number).map_or(Value::Integer(0), |given| given.value);
            if let Some((name, _)) = inner.typed.text(name) {
                pairs.push(self.given(field, line, Value::Named(name.to_owned(), number.into())));
            }
        }
        pairs
    }

    fn section_entries(&mut self, path: &str, node: Node) -> Option<Vec<(Key, Node)>> {
        match node.value {
            Tree::Map(entries) => {
                let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
                Some(self.without_duplicates(&prefix, entries))
            }
            other => {
                self.wrong_type(node.line, path, SECTION, &other);
                None
            }
        }
    }

    /// The entries of a section, each name once: of duplicates the last applies, as with upstream's decoder.
    fn without_duplicates(&mut self, prefix: &str, entries: Vec<(Key, Node)>) -> Vec<(Key, Node)> {
        let mut unique: Vec<(Key, Node)> = Vec::with_capacity(entries.len());
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (key, node) in entries {
            match seen.get(&key.name) {
                Some(index) => {
                    let first_line = unique[*index].0.line;
                    let path = format!("{prefix}{}", key.name);
                    self.mistake(key.line, &path, Problem::Duplicate { first_line });
                    unique[*index].1 = node;
                }
                None => {
                    seen.insert(key.name.clone(), unique.len());
                    unique.push((key, node));
                }
            }
        }
        unique
    }

    fn given(&self, field: &'static str, line: u64, value: Value) -> Given<Value> {
        Given { value, field, origin: Origin::File { name: self.file.clone(), line } }
    }

    fn wrong_type(&mut self, line: u64, path: &str, expected: &'static str, found: &Tree) {
        self.error(line, path, Problem::WrongType { expected, found: found.kind() });
    }

    fn error(&mut self, line: u64, path: &str, problem: Problem) {
        let error = self.at(line, path, problem);
        self.errors.push(error);
    }

    /// A mistake that does not keep the rest of the file from being used.
    fn mistake(&mut self, line: u64, path: &str, problem: Problem) {
        let mistake = self.at(line, path, problem);
        self.typed.mistakes.push(mistake);
    }

    fn at(&self, line: u64, path: &str, problem: Problem) -> ConfigError {
        let origin = Origin::File { name: self.file.clone(), line };
        ConfigError { origin, field: path.to_owned(), problem }
    }
}
