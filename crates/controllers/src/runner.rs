//! Runs the controllers: one loop over the events of the watches, the ends of writes, leadership and the clock.
//!
//! Nothing is written before every resource has been listed once, nor by a process that does not lead. Each controller
//! works on a number of keys at a time; deciding is done here, one key after the other, and writes are sent by tasks.

use crate::cluster::{Cluster, ClusterEvent, Touched};
use crate::controller::{Controller, Kind};
use crate::execute::{Outcome, Seen, execute, read_endpoints};
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
/// How long plans are made at a time, before the Lease, the pages and the watches have their turn.
const TURN: Duration = Duration::from_millis(20);
/// After this many conflicts in a row, another process is in the way.
const CONFLICTS: u32 = 5;

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
    working: HashMap<(usize, Key), Work>,
}

/// Writes that are under way.
struct Work {
    task: AbortHandle,
    objects: Vec<Key>,
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
            if self.start_work(Instant::now()) {
                tokio::task::yield_now().await;
            }
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
        let free = || self.controllers.iter().filter(|c| c.working < c.concurrency);
        if self.leads && self.listed && free().any(|c| c.queue.depth() > 0) {
            return Instant::now();
        }
        let next = free().filter_map(|c| c.queue.next_due()).min().filter(|_| self.leads && self.listed);
        next.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    fn notice(&mut self, notice: Notice<ClusterEvent>) {
        match notice {
            Notice::Event(event) => {
                let mut touched: Vec<Touched> = Vec::new();
                self.cluster.apply(event, &mut touched);
                self.touch(&touched, None);
                if !self.listed && self.cluster.is_listed() {
                    self.listed = true;
                    let (services, pods) = self.cluster.size();
                    tracing::info!(services, pods, "listed all objects");
                }
            }
            Notice::Rejected(rejected) => {
                if let Some(resource) = rejected.resource {
                    self.cluster.keep(resource, &rejected.namespace, &rejected.name);
                }
                tracing::warn!("{rejected}");
            }
            Notice::Outage(outage) => tracing::warn!("{outage}"),
            Notice::Recovered(resource) => {
                let resource = resource.map(|resource| resource.to_string()).unwrap_or_default();
                tracing::info!(resource, "the API server can be read again");
            }
        }
    }

    /// Adds Services to the queues of all controllers but one: the one whose write the change is.
    fn touch(&mut self, touched: &[Touched], except: Option<usize>) {
        let now = Instant::now();
        for touched in touched {
            for (index, controller) in self.controllers.iter_mut().enumerate() {
                if Some(index) != except {
                    controller.touch(touched, &self.cluster, now);
                }
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
        for ((index, key), work) in self.working.drain() {
            work.task.abort();
            self.cluster.writes_ended(&work.objects);
            let controller = &mut self.controllers[index];
            controller.working -= 1;
            controller.queue.done(&key, false, now);
            controller.queue.add(&key, now, now);
        }
        self.tasks = JoinSet::new();
    }

    /// Takes keys from the queues, decides, and sends the writes. True if time ran out before the queues were empty.
    fn start_work(&mut self, now: Instant) -> bool {
        if !self.leads || !self.listed {
            return false;
        }
        for index in 0..self.controllers.len() {
            while self.controllers[index].working < self.controllers[index].concurrency
                && let Some(key) = self.controllers[index].queue.take(now)
            {
                let started = Instant::now();
                let plan = self.controllers[index].reconcile(&self.cluster, &key);
                let kind = self.controllers[index].kind;
                self.metrics.reconciled(kind, &plan, self.cluster.service(&key), started);
                self.publish(index, &key, &plan);
                self.begin(index, key, plan);
                if now.elapsed() > TURN {
                    return true;
                }
            }
        }
        false
    }

    /// Sends the writes of a plan, or ends the work on its key if there are none.
    fn begin(&mut self, index: usize, key: Key, plan: Plan) {
        if let Some(missing) = &plan.incomplete {
            let controller = self.controllers[index].kind.name();
            tracing::debug!(controller, service = %key, "endpoints are incomplete: {missing}");
        }
        if plan.writes.is_empty() && !plan.reread {
            self.finish(index, &key, false);
            return;
        }
        for reasoned in &plan.writes {
            let (object, reason) = (reasoned.write.key(), &reasoned.reason);
            let (operation, kind) = (reasoned.write.operation(), reasoned.write.kind());
            tracing::info!(target: CHANGES, service = %key, operation, kind, %object, reason, "writing endpoints");
        }
        self.controllers[index].working += 1;
        let objects: Vec<Key> = plan.writes.iter().map(|reasoned| reasoned.write.key()).collect();
        self.cluster.writes_begin(objects.iter().cloned());
        let (client, owned) = (self.client.clone(), key.clone());
        let task = self.tasks.spawn(async move {
            let outcome = match plan.reread {
                true => read_endpoints(client, owned.clone()).await,
                false => execute(client, plan.writes).await,
            };
            (index, owned, outcome)
        });
        self.working.insert((index, key), Work { task, objects });
    }

    fn finish(&mut self, index: usize, key: &Key, failed: bool) {
        let controller = &mut self.controllers[index];
        if !failed {
            controller.succeeded(key);
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
        let Some(work) = self.working.remove(&(index, key.clone())) else { return };
        self.controllers[index].working -= 1;
        for operation in &outcome.done {
            self.metrics.changed(self.controllers[index].kind, operation);
        }
        let mut touched = Vec::new();
        for seen in outcome.seen {
            match seen {
                Seen::Slice(slice) => self.cluster.slice_written(*slice, &mut touched),
                Seen::SliceDeleted(key) => self.cluster.slice_deleted(&key),
                Seen::SliceMissing(key) => self.cluster.slice_missing(&key),
                Seen::Endpoints(endpoints) => self.cluster.endpoints_written(*endpoints, &mut touched),
                Seen::EndpointsMissing(key) => self.cluster.endpoints_missing(&key),
            }
        }
        self.cluster.writes_ended(&work.objects);
        // What was read, and not written, is news for this controller too.
        self.touch(&touched, (!work.objects.is_empty()).then_some(index));
        if let Some(failure) = &outcome.failure {
            let controller = &self.controllers[index];
            let attempt = controller.queue.failures(&key) + 1;
            let (name, message) = (controller.kind.name(), &failure.message);
            if failure.is_conflict && attempt < CONFLICTS {
                tracing::debug!(controller = name, service = %key, write = failure.write, "object has changed; trying again");
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
            let uid = self.cluster.endpoints(key).map(|e| e.meta.unpack().uid).unwrap_or_default();
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
