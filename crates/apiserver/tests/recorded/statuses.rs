//! Objects that are missing, that are there already and that have changed are reported as kube-apiserver does.

use crate::answers::{FILES, steps};
use portway_apiserver::status::About;
use serde_json::Value;

#[test]
fn refusals_have_the_recorded_words() {
    let mut counts = [0; 3];
    for step in FILES.into_iter().flat_map(steps) {
        let text = |name: &str| step.answer["details"][name].as_str().unwrap_or_default();
        let (group, kind, name) = (text("group"), text("kind"), text("name"));
        let about = About { group, kind, name };
        let message = step.answer["message"].as_str().unwrap_or_default();
        let subject = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let (ours, index) = match step.answer["reason"].as_str() {
            Some("NotFound") if message.ends_with(" not found") && !name.is_empty() => (about.not_found(), 0),
            Some("AlreadyExists") if message.starts_with(&subject) => (about.already_exists(), 1),
            Some("Conflict") if message.starts_with("Operation cannot be fulfilled on ") => {
                let why = message.split_once(&format!("{name:?}: ")).map_or("", |(_, why)| why);
                (about.conflict(why), 2)
            }
            _ => continue,
        };
        assert_eq!(ours, step.answer, "{}", step.name);
        counts[index] += 1;
    }
    assert!(counts.iter().all(|count| *count > 2), "{counts:?}");
    assert_eq!(About { group: "", kind: "x", name: "y" }.not_found()["details"]["group"], Value::Null);
}
