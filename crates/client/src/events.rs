//! Kubernetes Events: `kubectl describe` shows which objects could not be served, and why.
//!
//! In: warnings, from anywhere, without waiting. Out: `events.k8s.io/v1` Events. The same warning is written at most
//! once in ten minutes, with a count. At most [`KEPT`] warnings are remembered and [`QUEUED`] wait to be written; beyond
//! that they are dropped, since they are an aid and must never cost the agent memory or time.

mod series;

use crate::{Client, ObjectName, Part, Patch, RequestError};
use portway_api::{EventRecord, EventSeries, MicroTime, ObjectMeta, ObjectReference, ResourceType};
use serde_json::json;
use series::{Due, Series};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

/// Warnings waiting to be written.
const QUEUED: usize = 64;

/// Warnings remembered to count their repetitions.
const KEPT: usize = 256;

/// `note` may have 1 kB.
const LONGEST_NOTE: usize = 1024;

const CONTROLLER: &str = "portway-proxy";

/// The object that a warning is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// Its resource.
    pub resource: ResourceType,
    /// Its namespace, or empty.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its unique id; `kubectl describe` finds Events by it.
    pub uid: String,
}

/// One warning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Warning {
    regarding: Regarding,
    reason: String,
    note: String,
}

/// Takes warnings; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    queue: Option<mpsc::Sender<Warning>>,
}

impl Recorder {
    /// A recorder for one API server, and the future that writes what it takes, to be spawned. `instance` names this
    /// agent: the node.
    pub fn new(client: &Client, instance: &str) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, receiver) = mpsc::channel(QUEUED);
        let writer = Writer { client: client.clone(), instance: instance.to_owned() };
        (Recorder { queue: Some(sender) }, writer.run(receiver))
    }

    /// A recorder that drops everything, where there is no API server.
    pub fn none() -> Self {
        Recorder::default()
    }

    /// Warns about an object. Returns at once, always. `reason` is one CamelCase word, `note` a sentence.
    pub fn warn(&self, regarding: Regarding, reason: &str, note: &str) {
        let Some(queue) = &self.queue else { return };
        let note = note[..note.floor_char_boundary(LONGEST_NOTE)].to_owned();
        if queue.try_send(Warning { regarding, reason: reason.to_owned(), note }).is_err() {
            tracing::debug!(reason, "too many warnings at once: no Kubernetes Event for this one");
        }
    }
}

struct Writer {
    client: Client,
    instance: String,
}

impl Writer {
    async fn run(self, mut warnings: mpsc::Receiver<Warning>) {
        let mut series = Series::new(KEPT);
        let mut failing = false;
        while let Some(warning) = warnings.recv().await {
            let written = match series.due(&warning, Instant::now()) {
                Due::Not => continue,
                Due::First => self.create(&warning).await,
                Due::Again { event, count } => self.count(&warning, &event, count).await,
            };
            match written {
                Ok(event) => {
                    series.written(&warning, event);
                    failing = false;
                }
                Err(error) if !failing => {
                    let Regarding { resource, namespace, name, .. } = &warning.regarding;
                    let reason = warning.reason;
                    tracing::debug!(%error, %resource, namespace, name, reason, "Kubernetes Event not written");
                    failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Writes a new Event and returns its name.
    async fn create(&self, warning: &Warning) -> Result<String, RequestError> {
        let written = self.client.create(&event(warning, &self.instance, now())).await?;
        Ok(written.metadata.map(|meta| meta.name).unwrap_or_default())
    }

    /// Counts an Event up; a new one if the old one has been deleted, an hour after it was written.
    async fn count(&self, warning: &Warning, event: &str, count: i32) -> Result<String, RequestError> {
        let series = EventSeries { count, last_observed_time: Some(MicroTime::since_epoch(now())) };
        let name = ObjectName::new(event_namespace(warning), event);
        let patch = Patch::Merge(json!({ "series": series }));
        match self.client.patch::<EventRecord>(name, Part::Main, &patch).await {
            Ok(_) => Ok(event.to_owned()),
            Err(error) if error.is_not_found() => self.create(warning).await,
            Err(error) => Err(error),
        }
    }
}

/// Events about objects without a namespace are in `default`.
fn event_namespace(warning: &Warning) -> &str {
    match warning.regarding.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

/// Time since the epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The Event of a new warning.
fn event(warning: &Warning, instance: &str, now: Duration) -> EventRecord {
    let Regarding { resource, namespace, name, uid } = &warning.regarding;
    EventRecord {
        metadata: Some(ObjectMeta {
            // As client-go names them: unique, and sorted by time.
            name: format!("{name}.{:x}", now.as_nanos()),
            namespace: event_namespace(warning).to_owned(),
            ..ObjectMeta::default()
        }),
        regarding: Some(ObjectReference {
            api_version: resource.api_version(),
            kind: resource.kind().to_owned(),
            namespace: namespace.clone(),
            name: name.clone(),
            uid: uid.clone(),
            ..ObjectReference::default()
        }),
        event_time: Some(MicroTime::since_epoch(now)),
        reporting_controller: CONTROLLER.to_owned(),
        reporting_instance: format!("{CONTROLLER}-{instance}"),
        action: "Sync".to_owned(),
        reason: warning.reason.clone(),
        note: warning.note.clone(),
        severity: "Warning".to_owned(),
        ..EventRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::{Resource, Service};

    fn warning(namespace: &str) -> Warning {
        let regarding = Regarding {
            resource: Service::TYPE,
            namespace: namespace.into(),
            name: "web".into(),
            uid: "u".into(),
        };
        Warning { regarding, reason: "PortConflict".into(), note: "node port 30000 is taken".into() }
    }

    #[test]
    fn an_event_points_at_its_object() {
        let event = event(&warning("shop"), "node-1", Duration::new(1_700_000_000, 5_000));
        let event = serde_json::to_value(event).unwrap();
        assert_eq!(event["metadata"], json!({ "namespace": "shop", "name": "web.17979cfe362a1388" }));
        assert_eq!(event["reportingInstance"], "portway-proxy-node-1");
        assert_eq!(event["eventTime"], "2023-11-14T22:13:20.000005Z");
        let regarding =
            json!({ "apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u" });
        assert_eq!(event["regarding"], regarding);
    }

    #[test]
    fn an_object_without_a_namespace_is_reported_in_default() {
        let event = serde_json::to_value(event(&warning(""), "n", Duration::ZERO)).unwrap();
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["regarding"].get("namespace"), None);
    }

    #[test]
    fn a_full_queue_drops_and_does_not_wait() {
        let (sender, mut receiver) = mpsc::channel(1);
        let recorder = Recorder { queue: Some(sender) };
        let long = "é".repeat(LONGEST_NOTE);
        recorder.warn(warning("a").regarding, "First", &long);
        recorder.warn(warning("a").regarding, "Second", "dropped");
        assert_eq!(receiver.try_recv().unwrap().note.len(), LONGEST_NOTE);
        assert!(receiver.try_recv().is_err());
        Recorder::none().warn(warning("a").regarding, "Nowhere", "");
    }
}
