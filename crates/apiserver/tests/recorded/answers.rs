//! Reads the recorded requests and answers.

use serde_json::Value;
use std::path::Path;

/// The recorded files about objects.
pub(crate) const FILES: [&str; 7] = [
    "service_defaults",
    "service_validation",
    "service_transitions",
    "patches",
    "apply",
    "objects",
    "other_kinds",
];

/// A request and its answer.
#[derive(Debug)]
pub(crate) struct Step {
    /// File, case and number, for messages.
    pub(crate) name: String,
    pub(crate) request: Value,
    pub(crate) status: u64,
    pub(crate) answer: Value,
}

/// The steps of a file, with values in place of the placeholders.
pub(crate) fn steps(file: &str) -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recorded/{file}.json"));
    let text = std::fs::read_to_string(&path).expect("a recorded file");
    let recorded: Value = serde_json::from_str(&text).expect("JSON");
    let mut steps = Vec::new();
    for case in recorded["cases"].as_array().into_iter().flatten() {
        for (number, step) in case["steps"].as_array().into_iter().flatten().enumerate() {
            let mut answer = step["response"]["body"].clone();
            let mut request = step["request"].clone();
            fill(&mut answer);
            fill(&mut request);
            steps.push(Step {
                name: format!("{file}: {} step {number}", case["name"].as_str().unwrap_or_default()),
                request,
                status: step["response"]["status"].as_u64().unwrap_or_default(),
                answer,
            });
        }
    }
    steps
}

/// Puts values in place of the placeholders: times, addresses and port numbers. The second address of a case is
/// `<ipv4-2>`.
fn fill(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with("<port") => {
            let number = text.trim_end_matches('>').rsplit_once('-').map_or("1", |(_, number)| number);
            *value = (30_000 + number.parse().unwrap_or(1)).into();
        }
        Value::String(text) if text.starts_with("<time") => *text = "2026-01-02T03:04:05Z".to_owned(),
        Value::String(text) if text.contains("<ipv") => {
            for (family, address) in [("ipv4", "10.96.0."), ("ipv6", "fd96::")] {
                *text = text.replace(&format!("<{family}>"), &format!("{address}1"));
                for number in 2..10 {
                    *text = text.replace(&format!("<{family}-{number}>"), &format!("{address}{number}"));
                }
            }
        }
        Value::String(text) if text.contains("{ns}") => *text = text.replace("{ns}", "ns"),
        Value::Array(items) => items.iter_mut().for_each(fill),
        Value::Object(fields) => fields.values_mut().for_each(fill),
        _ => {}
    }
}
