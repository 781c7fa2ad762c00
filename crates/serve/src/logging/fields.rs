//! The message and the fields of a log line, in the order in which they were recorded.

use serde_json::{Number, Value};
use std::fmt;
use std::path::Path;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};

/// The message and the other fields.
#[derive(Debug, Default)]
pub(super) struct Fields {
    pub(super) message: String,
    pub(super) others: Vec<(&'static str, Value)>,
}

impl Fields {
    /// The fields of an event.
    pub(super) fn of(event: &Event<'_>) -> Fields {
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields
    }

    fn insert(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            (name, value) => self.others.push((name, value)),
        }
    }
}

/// The file and the line that logged, as klog writes them.
pub(super) fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().and_then(|file| Path::new(file).file_name()?.to_str()).unwrap_or_default();
    format!("{file}:{}", metadata.line().unwrap_or_default())
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, Number::from_f64(value).map_or(Value::Null, Value::Number));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}").into());
    }
}
