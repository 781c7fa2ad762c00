//! Patches of objects: JSON merge patches, JSON patches and strategic merge patches.
//!
//! In: an object and a patch, both as JSON. Out: the changed object, or why the patch cannot be applied. Whether the
//! result is valid is not decided here.

mod json;
mod merge;
mod strategic;

pub use json::apply as apply_json;
pub use merge::apply as apply_merge;
pub use strategic::apply as apply_strategic;

use serde_json::Value;

/// Why a patch cannot be applied, in kube-apiserver's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is malformed (400).
    #[error("{0}")]
    Malformed(String),
    /// The patch does not fit the schema of the object (500, as kube-apiserver has it).
    #[error("{0}")]
    Unsuitable(String),
    /// The object is not as the patch expects it (422).
    #[error("{0}")]
    Inapplicable(String),
}

/// A value as Go prints it.
fn in_go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(in_go).collect::<Vec<_>>().join(" "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}:{}", in_go(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
