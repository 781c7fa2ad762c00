//! The metadata of objects.

use super::names::{check_labels, dns_label, qualified_name};
use super::{Causes, Fields, Reason};
use serde_json::{Value, json};

/// Bytes of all annotations at most.
const MAX_ANNOTATIONS: usize = 256 << 10;
/// Finalizers whose names have no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
/// Fields that only the server sets.
const OF_THE_SERVER: [&str; 4] =
    ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];

/// What the name of a kind may be: what is wrong with one.
pub type NameRule = fn(&str) -> Vec<String>;

/// Checks the metadata of a new object, whose name has been generated if it had none.
pub fn check(object: &Value, namespaced: bool, rule: NameRule) -> Causes {
    let meta = Fields(object).get("metadata");
    let mut causes = Causes::default();
    let prefix = meta.text("generateName");
    if !prefix.is_empty() {
        // The characters that follow a dash make it a valid end.
        let probe = match prefix.strip_suffix('-') {
            Some(rest) => format!("{rest}a"),
            None => prefix.to_owned(),
        };
        causes.invalid_for("metadata.generateName", prefix, rule(&probe));
    }
    match meta.text("name") {
        "" => causes.add(
            Reason::Required,
            "metadata.name",
            "Required value: name or generateName is required".to_owned(),
        ),
        name => causes.invalid_for("metadata.name", name, rule(name)),
    }
    match (namespaced, meta.text("namespace")) {
        (true, "") => causes.required("metadata.namespace"),
        (true, namespace) => causes.invalid_for("metadata.namespace", namespace, dns_label(namespace)),
        (false, "") => {}
        (false, _) => causes.forbidden("metadata.namespace", "not allowed on this type"),
    }
    let generation = meta.number("generation");
    if generation < 0 {
        causes.invalid("metadata.generation", &json!(generation), "must be greater than or equal to 0");
    }
    check_common(meta, &mut causes);
    check_finalizers(meta, &mut causes);
    check_finalizer_names(meta, &mut causes);
    causes
}

/// Gives the fields that only the server sets to an object with which a client replaces another one.
pub fn keep_server_fields(object: &mut Value, old: &Value) {
    object["metadata"]["creationTimestamp"] = old["metadata"]["creationTimestamp"].clone();
    for field in OF_THE_SERVER {
        if !Fields(object).get("metadata").has(field) && Fields(old).get("metadata").has(field) {
            object["metadata"][field] = old["metadata"][field].clone();
        }
    }
}

/// Checks the metadata of a changed object.
pub fn check_update(object: &Value, old: &Value) -> Causes {
    let (before, meta) = (Fields(old).get("metadata"), Fields(object).get("metadata"));
    let mut causes = Causes::default();
    if before.has("deletionTimestamp") {
        let known = before.texts("finalizers");
        let mut added: Vec<&str> = meta.texts("finalizers");
        added.retain(|finalizer| !known.contains(finalizer));
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let list: Vec<String> = added.iter().map(|finalizer| format!("{finalizer:?}")).collect();
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                list.join(", ")
            );
            causes.forbidden("metadata.finalizers", &why);
        }
    }
    let generation = meta.number("generation");
    if generation < before.number("generation") {
        causes.invalid("metadata.generation", &json!(generation), "must not be decremented");
    }
    for field in ["name", "namespace"].into_iter().chain(OF_THE_SERVER) {
        if meta.get(field).0 != before.get(field).0 {
            causes.invalid(format!("metadata.{field}"), meta.get(field).0, "field is immutable");
        }
    }
    check_common(meta, &mut causes);
    check_finalizers(meta, &mut causes);
    check_finalizer_names(meta, &mut causes);
    causes
}

fn check_common(meta: Fields<'_>, causes: &mut Causes) {
    check_labels("metadata.labels", meta.map("labels"), causes);
    let mut size = 0;
    for (key, value) in meta.map("annotations") {
        size += key.len() + value.len();
        causes.invalid_for("metadata.annotations", key, qualified_name(&key.to_lowercase()));
    }
    if size > MAX_ANNOTATIONS {
        let text = format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        causes.add(Reason::TooLong, "metadata.annotations", text);
    }
    check_owners(meta, causes);
}

fn check_owners(meta: Fields<'_>, causes: &mut Causes) {
    const FIELD: &str = "metadata.ownerReferences";
    let owners = meta.list("ownerReferences");
    let mut first: Option<String> = None;
    for reference in owners {
        let owner = Fields(reference);
        let version = owner.text("apiVersion");
        let wrong = [
            ("apiVersion", version_of(version).is_empty(), "version must not be empty"),
            ("kind", owner.text("kind").is_empty(), "must not be empty"),
            ("name", owner.text("name").is_empty(), "must not be empty"),
            ("uid", owner.text("uid").is_empty(), "must not be empty"),
        ];
        for (field, _, why) in wrong.into_iter().filter(|(_, is, _)| *is) {
            causes.invalid(format!("{FIELD}.{field}"), &json!(owner.text(field)), why);
        }
        if (version, owner.text("kind")) == ("v1", "Event") {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            causes.invalid_text(FIELD, &reference_text(owner), why);
        }
        if owner.get("controller").0 == &json!(true) {
            let name = format!("{}/{}", owner.text("kind"), owner.text("name"));
            match &first {
                None => first = Some(name),
                Some(first) => {
                    let all: Vec<String> = owners.iter().map(|owner| reference_text(Fields(owner))).collect();
                    let why = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and \
                         {name}"
                    );
                    causes.invalid_text(FIELD, &format!("[{}]", all.join(",")), &why);
                }
            }
        }
    }
}

/// The version in an `apiVersion`.
fn version_of(text: &str) -> &str {
    match text.split_once('/') {
        None => text,
        Some((_, version)) if version.contains('/') => "",
        Some((_, version)) => version,
    }
}

/// An owner reference as JSON, with its fields in their order.
fn reference_text(owner: Fields<'_>) -> String {
    let mut fields: Vec<String> = ["apiVersion", "kind", "name", "uid"]
        .into_iter()
        .map(|name| format!("\"{name}\":{}", json!(owner.text(name))))
        .collect();
    let flags = ["controller", "blockOwnerDeletion"].into_iter().filter(|name| owner.has(name));
    fields.extend(flags.map(|name| format!("\"{name}\":{}", owner.get(name).0)));
    format!("{{{}}}", fields.join(","))
}

fn check_finalizers(meta: Fields<'_>, causes: &mut Causes) {
    let finalizers = meta.texts("finalizers");
    for finalizer in &finalizers {
        causes.invalid_for("metadata.finalizers", finalizer, qualified_name(finalizer));
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.invalid("metadata.finalizers", &json!(finalizers), why);
    }
}

fn check_finalizer_names(meta: Fields<'_>, causes: &mut Causes) {
    for (index, finalizer) in meta.texts("finalizers").into_iter().enumerate() {
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            causes.invalid(format!("metadata.finalizers[{index}]"), &json!(finalizer), why);
        }
    }
}
