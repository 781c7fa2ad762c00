//! Kubernetes Events: telling `kubectl describe` what could not be served, and why.
//!
//! In: warnings, from anywhere, without waiting. Out: `events.k8s.io/v1` Events. The same warning is written at most
//! once in ten minutes, with a count. At most [`KEPT`] warnings are remembered and [`QUEUED`] wait to be written; beyond
//! that they are dropped, since they are an aid and must never cost the agent memory or time.

mod series;

use crate::Client;
use crate::kubernetes::WriteError;
use portway_model::api::Kind;
use portway_model::time::format_rfc3339;
use serde_json::{Value, json};
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
                    let Regarding { kind, namespace, name, .. } = &warning.regarding;
                    let reason = warning.reason;
                    tracing::debug!(%error, %kind, namespace, name, reason, "Kubernetes Event not written");
                    failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Writes a new Event and returns its name.
    async fn create(&self, warning: &Warning) -> Result<String, WriteError> {
        let event = event(warning, &self.instance, now());
        let written = self.client.create(&collection(warning), &event).await?;
        Ok(written["metadata"]["name"].as_str().unwrap_or_default().to_owned())
    }

    /// Counts an Event up; a new one if the old one's hour is over.
    async fn count(&self, warning: &Warning, event: &str, count: i32) -> Result<String, WriteError> {
        let patch = json!({ "series": { "count": count, "lastObservedTime": micro_time(now()) } });
        match self.client.merge(&format!("{}/{event}", collection(warning)), &patch).await {
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

fn collection(warning: &Warning) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{}/events", event_namespace(warning))
}

/// Time since the epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// As the API server writes a `MicroTime`.
fn micro_time(now: Duration) -> String {
    let seconds = format_rfc3339(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    format!("{}.{:06}Z", seconds.trim_end_matches('Z'), now.subsec_micros())
}

/// The Event that tells a warning for the first time.
fn event(warning: &Warning, instance: &str, now: Duration) -> Value {
    let Regarding { kind, namespace, name, uid } = &warning.regarding;
    let api_version = match kind {
        Kind::Service | Kind::Node => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
        Kind::ServiceCidr => "networking.k8s.io/v1",
    };
    let mut regarding = json!({ "apiVersion": api_version, "kind": kind.to_string() });
    for (field, value) in [("namespace", namespace), ("name", name), ("uid", uid)] {
        if !value.is_empty() {
            regarding[field] = value.as_str().into();
        }
    }
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            // As client-go names them: unique, and sorted by time.
            "name": format!("{name}.{:x}", now.as_nanos()),
            "namespace": event_namespace(warning),
        },
        "regarding": regarding,
        "eventTime": micro_time(now),
        "reportingController": CONTROLLER,
        "reportingInstance": format!("{CONTROLLER}-{instance}"),
        "action": "Sync",
        "reason": warning.reason,
        "note": warning.note,
        "type": "Warning",
    })
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
        let event = event(&warning("shop"), "node-1", Duration::new(1_700_000_000, 5_000));
        assert_eq!(event["metadata"], json!({ "namespace": "shop", "name": "web.17979cfe362a1388" }));
        assert_eq!(event["reportingInstance"], "portway-proxy-node-1");
        assert_eq!(event["eventTime"], "2023-11-14T22:13:20.000005Z");
        let regarding =
            json!({ "apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u" });
        assert_eq!(event["regarding"], regarding);
    }

    #[test]
    fn an_object_without_a_namespace_is_reported_in_default() {
        let event = event(&warning(""), "n", Duration::ZERO);
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
