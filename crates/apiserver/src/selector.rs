//! Selectors in requests: which objects a list, a watch or a deletion is about.

mod fields;
mod labels;

pub use fields::{FieldSelector, Selectable};
pub use labels::LabelSelector;

/// Why a selector is refused (400), in kube-apiserver's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);
