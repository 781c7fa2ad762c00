//! The ReplicaSets of a Deployment: the one of its newest template, the old ones, their revisions and annotations; and
//! the changes that a plan makes to them.

use super::{Context, REVISION};
use crate::generated;
use crate::names::LAST_APPLIED;
use crate::replicaset::{owner, replicas};
use portway_api::{Deployment, ObjectMeta, ReplicaSet, ReplicaSetSpec, ReplicaSetStatus};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The label with the hash of the template.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// The annotation with the number of Pods that the Deployment had when the ReplicaSet was last scaled.
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
/// The same with the Pods that there may be in addition.
pub(super) const MAXIMUM: &str = "deployment.kubernetes.io/max-replicas";
/// The annotation with the earlier revisions of a template that came back.
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Characters of that annotation at most; the oldest revisions are dropped.
const MAX_HISTORY: usize = 2000;
/// Characters of a template's hash.
const HASH: usize = 10;
/// The longest name of an object.
const MAX_NAME: usize = 253;

/// A ReplicaSet and the changes to it.
#[derive(Clone, Debug)]
pub(super) struct Draft<'a> {
    pub(super) set: &'a ReplicaSet,
    pub(super) meta: &'a ObjectMeta,
    pub(super) spec: &'a ReplicaSetSpec,
    /// The number of Pods that it will have.
    pub(super) replicas: i32,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) min_ready_seconds: i32,
    pub(super) delete: bool,
}

impl<'a> Draft<'a> {
    fn new(set: &'a ReplicaSet) -> Option<Draft<'a>> {
        let (meta, spec) = (set.metadata.as_ref()?, set.spec.as_ref()?);
        Some(Draft {
            set,
            meta,
            spec,
            replicas: replicas(spec),
            annotations: meta.annotations.clone().into_iter().collect(),
            min_ready_seconds: spec.min_ready_seconds,
            delete: false,
        })
    }

    pub(super) fn status(&self) -> ReplicaSetStatus {
        self.set.status.clone().unwrap_or_default()
    }

    pub(super) fn created(&self) -> (i64, &str) {
        (self.meta.creation_timestamp.map_or(0, |time| time.seconds), &self.meta.name)
    }

    pub(super) fn revision(&self) -> i64 {
        self.annotations.get(REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
    }

    pub(super) fn number(&self, annotation: &str) -> Option<i32> {
        self.annotations.get(annotation)?.parse().ok()
    }

    /// Sets the numbers by which a later scale is proportioned. The ReplicaSet is changed only if they differ.
    pub(super) fn annotate(&mut self, desired: i32, maximum: i32) {
        self.annotations.insert(DESIRED.to_owned(), desired.to_string());
        self.annotations.insert(MAXIMUM.to_owned(), maximum.to_string());
    }

    /// The fields to change, if any.
    pub(super) fn fields(&self) -> Option<Value> {
        let mut fields = json!({});
        for (name, value) in &self.annotations {
            if self.meta.annotations.get(name) != Some(value) {
                fields["metadata"]["annotations"][name] = value.as_str().into();
            }
        }
        if self.replicas != replicas(self.spec) {
            fields["spec"]["replicas"] = self.replicas.into();
        }
        if self.min_ready_seconds != self.spec.min_ready_seconds {
            fields["spec"]["minReadySeconds"] = self.min_ready_seconds.into();
        }
        (fields != json!({})).then_some(fields)
    }
}

/// The ReplicaSets of a Deployment.
#[derive(Debug)]
pub(super) struct Sets<'a> {
    /// The one of the newest template.
    pub(super) new: Option<Draft<'a>>,
    /// The others, oldest first.
    pub(super) old: Vec<Draft<'a>>,
}

impl<'a> Sets<'a> {
    pub(super) fn new(context: Context<'_>, owned: Vec<&'a ReplicaSet>) -> Sets<'a> {
        let mut drafts: Vec<Draft<'a>> = owned.into_iter().filter_map(Draft::new).collect();
        drafts.sort_by(|a, b| a.created().cmp(&b.created()));
        let wanted = without_hash(&context.spec.template);
        let found = drafts.iter().position(|draft| without_hash(&draft.spec.template) == wanted);
        let new = found.map(|position| drafts.remove(position));
        Sets { new, old: drafts }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Draft<'a>> {
        self.old.iter().chain(&self.new)
    }

    /// All of them, to be changed.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Draft<'a>> {
        self.old.iter_mut().chain(&mut self.new)
    }

    /// The sum of a number of all of them.
    pub(super) fn sum(&self, number: impl Fn(&Draft<'a>) -> i32) -> i32 {
        self.all().map(number).sum()
    }

    /// The revision that a new template gets.
    pub(super) fn next_revision(&self) -> i64 {
        self.old.iter().map(Draft::revision).max().unwrap_or(0) + 1
    }

    /// Gives the ReplicaSet of the newest template the annotations of the Deployment, and the newest revision.
    pub(super) fn update_new(&mut self, context: Context<'_>) {
        let next = self.next_revision();
        let Some(new) = &mut self.new else { return };
        let old = new.revision();
        for (name, value) in copied_annotations(context.meta) {
            new.annotations.insert(name, value);
        }
        if old < next {
            new.annotations.insert(REVISION.to_owned(), next.to_string());
            if old > 0 {
                let history = new.annotations.entry(HISTORY.to_owned()).or_default();
                let separator = if history.is_empty() { "" } else { "," };
                *history = format!("{history}{separator}{old}");
                while history.len() > MAX_HISTORY
                    && let Some((_, rest)) = history.split_once(',')
                {
                    *history = rest.to_owned();
                }
            }
        }
        new.min_ready_seconds = context.spec.min_ready_seconds;
    }
}

/// The annotations of a Deployment that its ReplicaSets have too.
fn copied_annotations(meta: &ObjectMeta) -> impl Iterator<Item = (String, String)> {
    let own = [LAST_APPLIED, REVISION, HISTORY, DESIRED, MAXIMUM, "deprecated.deployment.rollback.to"];
    let copied = meta.annotations.iter().filter(move |(name, _)| !own.contains(&name.as_str()));
    copied.map(|(name, value)| (name.clone(), value.clone()))
}

/// A template without the label that tells the Pods of ReplicaSets apart.
fn without_hash(template: &str) -> Value {
    let mut template: Value = serde_json::from_str(template).unwrap_or_default();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(TEMPLATE_HASH);
        if labels.is_empty() {
            template["metadata"].as_object_mut().map(|metadata| metadata.remove("labels"));
        }
    }
    template
}

/// The ReplicaSet for the newest template.
pub(super) struct NewSet {
    pub(super) name: String,
    pub(super) object: Value,
}

/// Builds the ReplicaSet for the newest template. Its name is computed from the template, so that a second attempt does
/// not create another one.
pub(super) fn create(context: Context<'_>, replicas: i32, maximum: i32, revision: i64) -> NewSet {
    let Context { meta, spec, deployment, .. } = context;
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
    let hash = generated::text(&[spec.template.as_bytes(), &collisions.to_be_bytes()], HASH);
    let name = format!("{}-{hash}", &meta.name[..meta.name.floor_char_boundary(MAX_NAME - HASH - 1)]);
    let mut template: Value = serde_json::from_str(&spec.template).unwrap_or_default();
    template["metadata"]["labels"][TEMPLATE_HASH] = hash.as_str().into();
    let mut selector = json!(spec.selector);
    selector["matchLabels"][TEMPLATE_HASH] = hash.as_str().into();
    let mut annotations: BTreeMap<String, String> = copied_annotations(meta).collect();
    annotations.insert(REVISION.to_owned(), revision.to_string());
    annotations.insert(DESIRED.to_owned(), context.replicas().to_string());
    annotations.insert(MAXIMUM.to_owned(), maximum.to_string());
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": [owner::<Deployment>(meta)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.min_ready_seconds,
            "selector": selector,
            "template": template,
        },
    });
    NewSet { name, object }
}
