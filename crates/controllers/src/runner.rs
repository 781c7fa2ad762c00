//! Runs the controllers: one loop over the events of the watches, the ends of writes, leadership and the clock.
//!
//! Nothing is written before every resource has been listed once, nor by a process that does not lead. Each controller
//! works on a number of keys at a time; deciding is done here, one key after the other, and writes are sent by tasks.

use crate::cluster::{Cluster, ClusterEvent, Touched};
use crate::controller::{Controller, Kind};
use crate::execute::{Outcome, Seen, execute};
use crate::key::Key;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::plan::{Note, Plan};
use portway_api::complete::EndpointSlice;
use portway_api::{Endpoints, Node, Pod, Resource, Service};
use portway_client::{Client, Leadership, Notice, Recorder, Regarding, Selection, Source};
use portway_serve::logging::CHANGES;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

/// How long writes that are under way may take when the process is told to stop.
const GRACE: Duration = Duration::from_secs(10);
/// The time between heartbeats, and between updates of metrics.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Events that are handled before writes are sent again.
const BURST: usize = 10_000;

/// The controllers and their state.
pub(crate) struct Runner {
    client: Client,
    recorder: Recorder,
    metrics: Metrics,
    cluster: Cluster,
    controllers: Vec<Controller>,
    leads: bool,
    listed: bool,
    tasks: JoinSet<(usize, Key, Outcome)>,
    working: HashMap<(usize, Key), AbortHandle>,
}

impl Runner {
    pub(crate) fn new(client: Client, recorder: Recorder, metrics: Metrics, options: &Options) -> Runner {
        let enabled = Kind::ALL.into_iter().filter(|kind| options.is_enabled(*kind));
        Runner {
            client,
            recorder,
            metrics,
            cluster: Cluster::default(),
            controllers: enabled.map(|kind| Controller::new(kind, options)).collect(),
            leads: false,
            listed: false,
            tasks: JoinSet::new(),
            working: HashMap::new(),
        }
    }

    /// Runs until `stop` is set; then waits for the writes that are under way.
    pub(crate) async fn run(
        mut self,
        mut leadership: mpsc::UnboundedReceiver<Leadership>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut source: Source<ClusterEvent> = Source::kubernetes(&self.client)
            .watch::<Service>(Selection::all())
            .watch::<Pod>(Selection::all())
            .watch::<Node>(Selection::all())
            .watch::<EndpointSlice>(Selection::all())
            .watch::<Endpoints>(Selection::all())
            .start();
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.start_work(Instant::now());
            let next_due = self.next_due();
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(change) = leadership.recv() => self.leadership_changed(change),
                Some(ended) = self.tasks.join_next() => self.work_ended(ended),
                notice = source.next() => {
                    let Some(notice) = notice else { return };
                    self.notice(notice);
                    for _ in 0..BURST {
                        let Some(notice) = source.ready() else { break };
                        self.notice(notice);
                    }
                }
                () = tokio::time::sleep_until(next_due.into()) => {}
                _ = heartbeat.tick() => self.beat(),
            }
        }
        self.leads = false;
        let finish = async {
            while let Some(ended) = self.tasks.join_next().await {
                self.work_ended(ended);
            }
        };
        if tokio::time::timeout(GRACE, finish).await.is_err() {
            tracing::warn!(
                "writes were still under way and have been abandoned; the next leader repeats them"
            );
        }
    }

    fn beat(&mut self) {
        self.metrics.beat();
        let now = Instant::now();
        for controller in &mut self.controllers {
            self.metrics.update(controller, now);
        }
    }

    /// When the next key that waits is due.
    fn next_due(&self) -> Instant {
        let waits = self.controllers.iter().filter(|c| c.working < c.concurrency).map(|c| c.queue.next_due());
        let next = waits.flatten().min().filter(|_| self.leads && self.listed);
        next.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    fn notice(&mut self, notice: Notice<ClusterEvent>) {
        match notice {
            Notice::Event(event) => {
                let mut touched: Vec<Touched> = Vec::new();
                self.cluster.apply(event, &mut touched);
                let now = Instant::now();
                for touched in &touched {
                    for controller in &mut self.controllers {
                        controller.touch(touched, now);
                    }
                }
                if !self.listed && self.cluster.is_listed() {
                    self.listed = true;
                    let (services, pods) = self.cluster.size();
                    tracing::info!(services, pods, "listed all objects");
                }
            }
            Notice::Rejected(rejected) => tracing::warn!("{rejected}"),
            Notice::Outage(outage) => tracing::warn!("{outage}"),
            Notice::Recovered(resource) => {
                let resource = resource.map(|resource| resource.to_string()).unwrap_or_default();
                tracing::info!(resource, "the API server can be read again");
            }
        }
    }

    fn leadership_changed(&mut self, change: Leadership) {
        match change {
            Leadership::Acquired => {
                tracing::info!("this process leads: the controllers write from now on");
                self.leads = true;
                self.metrics.leads(true);
            }
            Leadership::Held { by } => tracing::info!(leader = by, "another process leads"),
            Leadership::Lost => {
                tracing::warn!("this process does not lead any more: the controllers write nothing");
                self.leads = false;
                self.metrics.leads(false);
                self.abandon();
            }
        }
    }

    /// Drops the writes that are under way. Their keys stay in the queue.
    fn abandon(&mut self) {
        let now = Instant::now();
        for ((index, key), task) in self.working.drain() {
            task.abort();
            let controller = &mut self.controllers[index];
            controller.working -= 1;
            controller.queue.done(&key, false, now);
            controller.queue.add(&key, now, now);
        }
        self.tasks = JoinSet::new();
    }

    /// Takes keys from the queues, decides, and sends the writes.
    fn start_work(&mut self, now: Instant) {
        if !self.leads || !self.listed {
            return;
        }
        for index in 0..self.controllers.len() {
            while self.controllers[index].working < self.controllers[index].concurrency
                && let Some(key) = self.controllers[index].queue.take(now)
            {
                let started = Instant::now();
                let plan = self.controllers[index].reconcile(&self.cluster, &key);
                self.metrics.reconciled(
                    self.controllers[index].kind,
                    &plan,
                    self.cluster.service(&key),
                    started,
                );
                self.publish(index, &key, &plan);
                self.begin(index, key, plan);
            }
        }
    }

    /// Sends the writes of a plan, or ends the work on its key if there are none.
    fn begin(&mut self, index: usize, key: Key, plan: Plan) {
        if plan.writes.is_empty() {
            let failed = plan.incomplete.is_some();
            self.finish(index, &key, failed);
            return;
        }
        for reasoned in &plan.writes {
            let (object, reason) = (reasoned.write.key(), &reasoned.reason);
            let (operation, kind) = (reasoned.write.operation(), reasoned.write.kind());
            tracing::info!(target: CHANGES, service = %key, %object, reason, "{operation} {kind}");
        }
        self.controllers[index].working += 1;
        let (client, owned, incomplete) = (self.client.clone(), key.clone(), plan.incomplete);
        let task = self.tasks.spawn(async move {
            let mut outcome = execute(client, plan.writes).await;
            if let Some(message) = incomplete.filter(|_| outcome.failure.is_none()) {
                outcome.failure = Some(crate::execute::Failure {
                    write: String::new(),
                    operation: "update",
                    message,
                    is_conflict: false,
                });
            }
            (index, owned, outcome)
        });
        self.working.insert((index, key), task);
    }

    fn finish(&mut self, index: usize, key: &Key, failed: bool) {
        let controller = &mut self.controllers[index];
        if !failed {
            controller.succeeded(&self.cluster, key);
        }
        controller.queue.done(key, failed, Instant::now());
        self.metrics.synced(controller.kind, if failed { "error" } else { "success" });
    }

    fn work_ended(&mut self, ended: Result<(usize, Key, Outcome), tokio::task::JoinError>) {
        let (index, key, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        if self.working.remove(&(index, key.clone())).is_none() {
            return;
        }
        self.controllers[index].working -= 1;
        for (kind, operation) in &outcome.done {
            self.metrics.changed(self.controllers[index].kind, kind, operation);
        }
        for seen in outcome.seen {
            match seen {
                Seen::Slice(slice) => self.cluster.slice_written(*slice),
                Seen::SliceDeleted(key) => self.cluster.slice_deleted(&key),
                Seen::SliceMissing(key) => self.cluster.slice_missing(&key),
                Seen::Endpoints(endpoints) => self.cluster.endpoints_written(*endpoints),
                Seen::EndpointsMissing(key) => self.cluster.endpoints_missing(&key),
            }
        }
        if let Some(failure) = &outcome.failure {
            let controller = &self.controllers[index];
            let attempt = controller.queue.failures(&key) + 1;
            let (name, message) = (controller.kind.name(), &failure.message);
            if failure.is_conflict {
                tracing::debug!(controller = name, service = %key, write = failure.write, "object has changed; trying again");
            } else if failure.write.is_empty() {
                tracing::info!(controller = name, service = %key, attempt, "endpoints are incomplete: {message}");
            } else {
                tracing::warn!(controller = name, service = %key, attempt, "{message}");
                let note = controller.failed(&key, failure.operation, message);
                self.record(&key, note);
            }
        }
        self.finish(index, &key, outcome.failure.is_some());
    }

    /// Records the Events of a plan.
    fn publish(&self, index: usize, key: &Key, plan: &Plan) {
        if self.controllers[index].kind == Kind::Mirroring {
            let uid = self.cluster.endpoints(key).map(|e| e.meta.uid.clone()).unwrap_or_default();
            let regarding = regarding::<Endpoints>(key, uid);
            plan.notes.iter().for_each(|note| write_note(&self.recorder, regarding.clone(), note));
        } else {
            plan.notes.iter().for_each(|note| self.record(key, Some(note.clone())));
        }
    }

    /// Records an Event about a Service.
    fn record(&self, key: &Key, note: Option<Note>) {
        let Some(note) = note else { return };
        let uid = self.cluster.service(key).map(|service| service.uid.to_string()).unwrap_or_default();
        write_note(&self.recorder, regarding::<Service>(key, uid), &note);
    }
}

fn regarding<R: Resource>(key: &Key, uid: String) -> Regarding {
    Regarding { resource: R::TYPE, namespace: key.namespace().to_owned(), name: key.name().to_owned(), uid }
}

fn write_note(recorder: &Recorder, regarding: Regarding, note: &Note) {
    match note.warning {
        true => recorder.warn(regarding, note.reason, &note.text),
        false => recorder.inform(regarding, note.reason, &note.text),
    }
}
