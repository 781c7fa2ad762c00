//! `meta/v1 LabelSelector`: which labels an object must have.

use crate::null_is_empty;
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// `meta/v1 LabelSelector`. All requirements have to be met; one without any selects everything.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels and the values that they must have.
    #[prost(map = "string, string", tag = "1")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "HashMap::is_empty")]
    pub match_labels: HashMap<String, String>,
    /// Requirements of other kinds.
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// `meta/v1 LabelSelectorRequirement`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirement {
    /// The label.
    #[prost(string, tag = "1")]
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    #[prost(string, tag = "2")]
    pub operator: String,
    /// The values, for `In` and `NotIn`.
    #[prost(string, repeated, tag = "3")]
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// A requirement that cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(pub String);

impl std::fmt::Display for SelectorError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl LabelSelector {
    /// Whether it has no requirement, and so selects everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Says which requirement cannot be evaluated.
    pub fn check(&self) -> Result<(), SelectorError> {
        for (index, Requirement { operator, values, .. }) in self.match_expressions.iter().enumerate() {
            let wrong = match operator.as_str() {
                "In" | "NotIn" if values.is_empty() => "has no values",
                "Exists" | "DoesNotExist" if !values.is_empty() => "must not have values",
                "In" | "NotIn" | "Exists" | "DoesNotExist" => continue,
                _ => "has an unknown operator",
            };
            return Err(SelectorError(format!("matchExpressions[{index}] {operator:?} {wrong}")));
        }
        Ok(())
    }

    /// Whether labels meet all requirements. One that cannot be evaluated is met by none.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.match_labels.iter().all(|(key, value)| label(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.is_met(label(&requirement.key)))
    }
}

impl Requirement {
    fn is_met(&self, value: Option<&str>) -> bool {
        let listed = value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed && !self.values.is_empty(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: &str) -> LabelSelector {
        serde_json::from_str(json).expect("a selector")
    }

    #[test]
    fn labels_are_matched_as_kubernetes_does() {
        let labels = [("app", "web"), ("tier", "front"), ("empty", "")];
        let label = |name: &str| labels.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        for (json, expected) in [
            (r#"{}"#, true),
            (r#"{"matchLabels":{"app":"web"}}"#, true),
            (r#"{"matchLabels":{"app":"web","tier":"back"}}"#, false),
            (r#"{"matchExpressions":[{"key":"tier","operator":"In","values":["back","front"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"tier","operator":"NotIn","values":["back"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"other","operator":"NotIn","values":["back"]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"other","operator":"In","values":[""]}]}"#, false),
            (r#"{"matchExpressions":[{"key":"empty","operator":"In","values":[""]}]}"#, true),
            (r#"{"matchExpressions":[{"key":"app","operator":"Exists"}]}"#, true),
            (r#"{"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]}"#, false),
            (r#"{"matchExpressions":[{"key":"other","operator":"DoesNotExist"}]}"#, true),
            (r#"{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"x","operator":"Exists"}]}"#, false),
        ] {
            let selector = selector(json);
            assert_eq!(selector.check(), Ok(()), "{json}");
            assert_eq!(selector.matches(label), expected, "{json}");
        }
    }

    #[test]
    fn a_requirement_that_cannot_be_evaluated_is_named_and_selects_nothing() {
        for (json, part) in [
            (r#"{"matchExpressions":[{"key":"a","operator":"Like"}]}"#, "unknown operator"),
            (r#"{"matchExpressions":[{"key":"a","operator":"In"}]}"#, "has no values"),
            (r#"{"matchExpressions":[{"key":"a","operator":"NotIn"}]}"#, "has no values"),
        ] {
            let selector = selector(json);
            let error = selector.check().expect_err(json).to_string();
            assert!(error.contains(part) && error.contains("matchExpressions[0]"), "{error}");
            assert!(!selector.matches(|_| None), "{json}");
        }
    }
}
