//! What is wrong with an object, in the words and the order in which kube-apiserver says it.

pub mod addresses;
pub mod metadata;
pub mod names;

use serde_json::{Value, json};
use std::fmt;

/// A field that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The kind of mistake.
    pub reason: Reason,
    /// The field, as in `spec.ports[0].port`.
    pub field: String,
    /// The mistake.
    pub message: String,
}

/// A kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The value is not valid.
    Invalid,
    /// There is no value.
    Required,
    /// The value is none of those that there are.
    NotSupported,
    /// There must be no value.
    Forbidden,
    /// The value is there twice.
    Duplicate,
    /// The value is too long.
    TooLong,
}

impl Reason {
    /// The name in a Status.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Invalid => "FieldValueInvalid",
            Reason::Required => "FieldValueRequired",
            Reason::NotSupported => "FieldValueNotSupported",
            Reason::Forbidden => "FieldValueForbidden",
            Reason::Duplicate => "FieldValueDuplicate",
            Reason::TooLong => "FieldValueTooLong",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// The mistakes of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes(Vec<Cause>);

impl Causes {
    fn add(&mut self, reason: Reason, field: impl Into<String>, message: String) {
        self.0.push(Cause { reason, field: field.into(), message });
    }

    /// A value is not valid, and why.
    pub fn invalid(&mut self, field: impl Into<String>, value: &Value, why: impl fmt::Display) {
        self.add(Reason::Invalid, field, format!("Invalid value: {value}: {why}"));
    }

    /// The same for a value whose JSON has an order of its own.
    pub fn invalid_text(&mut self, field: &str, value: &str, why: &str) {
        self.add(Reason::Invalid, field, format!("Invalid value: {value}: {why}"));
    }

    /// There is no value.
    pub fn required(&mut self, field: impl Into<String>) {
        self.add(Reason::Required, field, "Required value".to_owned());
    }

    /// There must be no value, and why.
    pub fn forbidden(&mut self, field: impl Into<String>, why: &str) {
        self.add(Reason::Forbidden, field, format!("Forbidden: {why}"));
    }

    /// A value is there twice.
    pub fn duplicate(&mut self, field: impl Into<String>, value: impl fmt::Display) {
        self.add(Reason::Duplicate, field, format!("Duplicate value: {value}"));
    }

    /// A value is none of those that there are.
    pub fn not_supported(&mut self, field: impl Into<String>, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {:?}: supported values: {}", value, supported.join(", "));
        self.add(Reason::NotSupported, field, message);
    }

    /// Several reasons why a value is not valid.
    pub fn invalid_for(&mut self, field: &str, value: &str, reasons: Vec<String>) {
        for why in reasons {
            self.invalid(field, &json!(value), why);
        }
    }

    /// A value has to be one of these.
    pub fn one_of(&mut self, field: &str, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            self.not_supported(field, value, supported);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The mistakes in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Cause> {
        self.0.iter()
    }

    /// Adds those of another part of the object.
    pub fn extend(&mut self, other: Causes) {
        self.0.extend(other.0);
    }
}

/// Fields of an object that is checked. What is absent is empty or zero, as in Go.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a Value);

impl<'a> Fields<'a> {
    /// A field.
    pub fn get(self, name: &str) -> Fields<'a> {
        Fields(self.0.get(name).unwrap_or(&Value::Null))
    }

    /// Whether a field is there.
    pub fn has(self, name: &str) -> bool {
        !self.get(name).0.is_null()
    }

    /// A text.
    pub fn text(self, name: &str) -> &'a str {
        self.get(name).0.as_str().unwrap_or_default()
    }

    /// A number.
    pub fn number(self, name: &str) -> i64 {
        self.get(name).0.as_i64().unwrap_or_default()
    }

    /// The items of a list.
    pub fn list(self, name: &str) -> &'a [Value] {
        self.get(name).0.as_array().map_or(&[], Vec::as_slice)
    }

    /// The texts of a list.
    pub fn texts(self, name: &str) -> Vec<&'a str> {
        self.list(name).iter().filter_map(Value::as_str).collect()
    }

    /// The texts of a map, by their keys.
    pub fn map(self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let fields = self.get(name).0.as_object().into_iter().flatten();
        fields.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
    }
}
