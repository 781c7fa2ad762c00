//! Kubernetes Events: telling `kubectl describe` what could not be served, and why.
//!
//! In: warnings, from anywhere, without waiting. Out: `events.k8s.io/v1` Events. The same warning is written at most
//! once in ten minutes, with a count. At most [`KEPT`] warnings are remembered and [`QUEUED`] wait to be written; beyond
//! that they are dropped, since they are an aid and must never cost the agent memory or time.

mod series;

use crate::Client;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use portway_model::api::Kind;
use series::{Due, Series};
use std::time::Instant;
use tokio::sync::mpsc;

/// Warnings waiting to be written.
const QUEUED: usize = 64;

/// Warnings remembered to count their repetitions.
const KEPT: usize = 256;

/// `note` may have 1 kB.
const LONGEST_NOTE: usize = 1024;

const CONTROLLER: &str = "portway-proxy";

/// What a warning is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// Its kind.
    pub kind: Kind,
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
        let writer = Writer { client: client.kube().clone(), instance: instance.to_owned() };
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
    client: kube::Client,
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
                    tracing::debug!(%error, "Kubernetes Event not written");
                    failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Events about objects without a namespace live in `default`.
    fn api(&self, warning: &Warning) -> Api<Event> {
        let namespace = match warning.regarding.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Writes a new Event and returns its name.
    async fn create(&self, warning: &Warning) -> kube::Result<String> {
        let api = self.api(warning);
        let event = event(warning, &self.instance, Timestamp::now());
        let event = api.create(&PostParams::default(), &event).await?;
        Ok(event.metadata.name.unwrap_or_default())
    }

    /// Counts an Event up; a new one if the old one's hour is over.
    async fn count(&self, warning: &Warning, event: &str, count: i32) -> kube::Result<String> {
        let series = EventSeries { count, last_observed_time: MicroTime(Timestamp::now()) };
        let patch = Patch::Merge(serde_json::json!({ "series": series }));
        match self.api(warning).patch(event, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(event.to_owned()),
            Err(kube::Error::Api(status)) if status.code == 404 => self.create(warning).await,
            Err(error) => Err(error),
        }
    }
}

/// The Event that tells a warning for the first time.
fn event(warning: &Warning, instance: &str, now: Timestamp) -> Event {
    let Regarding { kind, namespace, name, uid } = &warning.regarding;
    let api_version = match kind {
        Kind::Service | Kind::Node => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
        Kind::ServiceCidr => "networking.k8s.io/v1",
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let event_namespace = some(namespace).unwrap_or_else(|| "default".into());
    Event {
        metadata: ObjectMeta {
            // As client-go names them: unique, and sorted by time.
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(event_namespace),
            ..ObjectMeta::default()
        },
        regarding: Some(ObjectReference {
            api_version: Some(api_version.into()),
            kind: Some(kind.to_string()),
            namespace: some(namespace),
            name: some(name),
            uid: some(uid),
            ..ObjectReference::default()
        }),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(CONTROLLER.into()),
        reporting_instance: Some(format!("{CONTROLLER}-{instance}")),
        action: Some("Sync".into()),
        reason: Some(warning.reason.clone()),
        note: Some(warning.note.clone()),
        type_: Some("Warning".into()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(namespace: &str) -> Warning {
        let regarding = Regarding {
            kind: Kind::Service,
            namespace: namespace.into(),
            name: "web".into(),
            uid: "u".into(),
        };
        Warning { regarding, reason: "PortConflict".into(), note: "node port 30000 is taken".into() }
    }

    #[test]
    fn an_event_points_at_its_object() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let event = event(&warning("shop"), "node-1", now);
        assert_eq!(event.metadata.namespace.as_deref(), Some("shop"));
        assert_eq!(event.metadata.name.as_deref(), Some("web.17979cfe362a0000"));
        assert_eq!(event.reporting_instance.as_deref(), Some("portway-proxy-node-1"));
        let regarding = event.regarding.unwrap();
        assert_eq!((regarding.kind.as_deref(), regarding.uid.as_deref()), (Some("Service"), Some("u")));
    }

    #[test]
    fn an_object_without_a_namespace_is_reported_in_default() {
        let event = event(&warning(""), "n", Timestamp::UNIX_EPOCH);
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(event.regarding.unwrap().namespace, None);
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
