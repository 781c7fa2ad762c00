//! Kubernetes Events: `kubectl describe` shows which objects could not be programmed, and why.
//!
//! In: reports, which callers queue without waiting. Out: `events.k8s.io/v1` Events. The same report is written at most
//! once in ten minutes, with a count. At most [`COUNTED`] reports are kept for counting, and at most [`QUEUED`] are
//! queued; further ones are dropped, because Events must not cost the agent memory or delay it.
//!
//! Events name kube-proxy as their reporter, so that alerts written for it apply.

mod series;

use crate::{Client, ObjectName, Patch, RequestError, Subresource};
use portway_api::{EventRecord, EventSeries, MicroTime, ObjectMeta, ObjectReference, ResourceType};
use serde_json::json;
use series::{Due, Series};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

/// Capacity of the queue of reports to be written.
const QUEUED: usize = 64;

/// Number of reports whose repetitions are counted.
const COUNTED: usize = 256;

/// Longest `note` that the API server accepts, in bytes.
const MAX_NOTE: usize = 1024;

/// The object that a report is about.
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

/// A report about an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Report {
    severity: &'static str,
    regarding: Regarding,
    reason: String,
    note: String,
}

/// Queues reports to be written as Events. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    queue: Option<mpsc::Sender<Report>>,
}

impl Recorder {
    /// A recorder for one API server, and the future that writes its reports, which the caller spawns. `controller` is
    /// the name under which they are reported, `instance` that of the node or the process.
    pub fn new(
        client: &Client,
        controller: &'static str,
        instance: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, receiver) = mpsc::channel(QUEUED);
        let writer = Writer { client: client.clone(), controller, instance: instance.to_owned() };
        (Recorder { queue: Some(sender) }, writer.run(receiver))
    }

    /// A recorder that drops all reports, for use without an API server.
    pub fn none() -> Self {
        Recorder::default()
    }

    /// Queues a warning about an object and returns at once. `reason` is one CamelCase word, `note` a sentence.
    pub fn warn(&self, regarding: Regarding, reason: &str, note: &str) {
        self.queue("Warning", regarding, reason, note);
    }

    /// Queues a report of normal operation and returns at once.
    pub fn inform(&self, regarding: Regarding, reason: &str, note: &str) {
        self.queue("Normal", regarding, reason, note);
    }

    fn queue(&self, severity: &'static str, regarding: Regarding, reason: &str, note: &str) {
        let Some(queue) = &self.queue else { return };
        let note = note[..note.floor_char_boundary(MAX_NOTE)].to_owned();
        if queue.try_send(Report { severity, regarding, reason: reason.to_owned(), note }).is_err() {
            tracing::debug!(reason, "queue of Kubernetes Events is full; report dropped");
        }
    }
}

struct Writer {
    client: Client,
    controller: &'static str,
    instance: String,
}

impl Writer {
    async fn run(self, mut reports: mpsc::Receiver<Report>) {
        let mut series = Series::new(COUNTED);
        let mut failing = false;
        while let Some(report) = reports.recv().await {
            let written = match series.due(&report, Instant::now()) {
                Due::NotYet => continue,
                Due::First => self.create(&report).await,
                Due::Repeated { event, count } => self.update_count(&report, &event, count).await,
            };
            match written {
                Ok(event) => {
                    series.written(&report, event);
                    failing = false;
                }
                Err(error) if !failing => {
                    let Regarding { resource, namespace, name, .. } = &report.regarding;
                    let reason = report.reason;
                    tracing::debug!(%error, %resource, namespace, name, reason, "cannot write Kubernetes Event");
                    failing = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Writes a new Event and returns its name.
    async fn create(&self, report: &Report) -> Result<String, RequestError> {
        let written = self.client.create(&event(report, self.controller, &self.instance, now())).await?;
        Ok(written.metadata.map(|meta| meta.name).unwrap_or_default())
    }

    /// Updates the count of an Event. Creates a new Event if the old one was deleted, as the API server does after its
    /// time to live (one hour by default).
    async fn update_count(&self, report: &Report, event: &str, count: i32) -> Result<String, RequestError> {
        let series = EventSeries { count, last_observed_time: Some(MicroTime::since_epoch(now())) };
        let name = ObjectName::new(event_namespace(report), event);
        let patch = Patch::Merge(json!({ "series": series }));
        match self.client.patch::<EventRecord>(name, Subresource::None, &patch).await {
            Ok(_) => Ok(event.to_owned()),
            Err(error) if error.is_not_found() => self.create(report).await,
            Err(error) => Err(error),
        }
    }
}

/// Events about cluster-scoped objects are in the namespace `default`.
fn event_namespace(report: &Report) -> &str {
    match report.regarding.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

/// Duration since the epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The Event for a new report.
fn event(report: &Report, controller: &str, instance: &str, now: Duration) -> EventRecord {
    let Regarding { resource, namespace, name, uid } = &report.regarding;
    EventRecord {
        metadata: Some(ObjectMeta {
            // As client-go names them: unique, and sorted by time.
            name: format!("{name}.{:x}", now.as_nanos()),
            namespace: event_namespace(report).to_owned(),
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
        reporting_controller: controller.to_owned(),
        reporting_instance: format!("{controller}-{instance}"),
        action: "Sync".to_owned(),
        reason: report.reason.clone(),
        note: report.note.clone(),
        severity: report.severity.to_owned(),
        ..EventRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::{Resource, Service};

    fn report(namespace: &str) -> Report {
        let regarding = Regarding {
            resource: Service::TYPE,
            namespace: namespace.into(),
            name: "web".into(),
            uid: "u".into(),
        };
        let (reason, note) = ("PortConflict".into(), "node port 30000 is taken".into());
        Report { severity: "Warning", regarding, reason, note }
    }

    #[test]
    fn an_event_refers_to_its_object() {
        let event = event(&report("shop"), "kube-proxy", "node-1", Duration::new(1_700_000_000, 5_000));
        let event = serde_json::to_value(event).unwrap();
        assert_eq!(event["metadata"], json!({ "namespace": "shop", "name": "web.17979cfe362a1388" }));
        assert_eq!(event["reportingInstance"], "kube-proxy-node-1");
        assert_eq!(event["eventTime"], "2023-11-14T22:13:20.000005Z");
        let regarding =
            json!({ "apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u" });
        assert_eq!(event["regarding"], regarding);
    }

    #[test]
    fn events_about_cluster_scoped_objects_are_in_the_namespace_default() {
        let event = serde_json::to_value(event(&report(""), "kube-proxy", "n", Duration::ZERO)).unwrap();
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["regarding"].get("namespace"), None);
    }

    #[test]
    fn a_full_queue_drops_reports_without_waiting() {
        let (sender, mut receiver) = mpsc::channel(1);
        let recorder = Recorder { queue: Some(sender) };
        let long = "é".repeat(MAX_NOTE);
        recorder.warn(report("a").regarding, "First", &long);
        recorder.warn(report("a").regarding, "Second", "dropped");
        assert_eq!(receiver.try_recv().unwrap().note.len(), MAX_NOTE);
        assert!(receiver.try_recv().is_err());
        Recorder::none().warn(report("a").regarding, "Dropped", "");
    }
}
