//! Runs the controllers: one loop over the events of the watches, the ends of writes, leadership and the clock.
//!
//! Nothing is written before every resource has been listed once, nor by a process that does not lead. Each controller
//! works on a number of keys at a time; deciding is done here, one key after the other, and writes are sent by tasks.

use crate::cluster::{ClusterEvent, Touched};
use crate::controller::{Clock, Controller};
use crate::execute::{Outcome, Seen, execute};
use crate::key::Key;
use crate::kind::Kind;
use crate::metrics::Metrics;
use crate::plan::{Plan, Reasoned};
use crate::under_way::ObjectId;
use crate::views::Views;
use crate::workloads::node::LEASES;
use portway_api::complete::EndpointSlice;
use portway_api::metadata_only::{ConfigMap, Namespace, Secret, ServiceAccount};
use portway_api::{Deployment, Endpoints, Lease, Node, Pod, ReplicaSet, Resource, ResourceType, Service};
use portway_client::{Client, Leadership, Notice, Selection, Source};
use portway_serve::logging::CHANGES;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
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
/// A process whose loop has not run for so long was stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// After this many conflicts in a row, another process is in the way.
const CONFLICTS: u32 = 5;

/// The controllers and their state.
pub(crate) struct Runner {
    client: Client,
    metrics: Metrics,
    views: Views,
    controllers: Vec<Controller>,
    /// Resources that cannot be read at the moment.
    outages: HashSet<Option<ResourceType>>,
    leads: bool,
    listed: bool,
    resync_period: Duration,
    next_resync: Instant,
    last_beat: Instant,
    tasks: JoinSet<(usize, Key, Outcome)>,
    working: HashMap<(usize, Key), Work>,
}

/// Writes that are under way.
struct Work {
    task: AbortHandle,
    /// The objects that are written or read.
    objects: Vec<ObjectId>,
    is_write: bool,
    again_after: Option<Duration>,
}

impl Runner {
    /// `controllers` are those that run.
    pub(crate) fn new(
        client: Client,
        metrics: Metrics,
        controllers: Vec<Controller>,
        resync_period: Duration,
    ) -> Runner {
        let kinds: Vec<Kind> = controllers.iter().map(|controller| controller.kind).collect();
        let now = Instant::now();
        Runner {
            client,
            metrics,
            views: Views::of(&kinds),
            controllers,
            outages: HashSet::new(),
            leads: false,
            listed: false,
            resync_period,
            next_resync: now + resync_period,
            last_beat: now,
            tasks: JoinSet::new(),
            working: HashMap::new(),
        }
    }

    /// Lists and watches the resources that the views are made of.
    fn subscribe(&self) -> Source<ClusterEvent> {
        let (has_workloads, has_graph) = (self.views.workloads.is_some(), self.views.graph.is_some());
        let mut source =
            Source::kubernetes(&self.client).watch::<Pod>(Selection::all()).watch::<Node>(Selection::all());
        if self.views.has_endpoints() || has_graph {
            source = source
                .watch::<Service>(Selection::all())
                .watch::<EndpointSlice>(Selection::all())
                .watch::<Endpoints>(Selection::all());
        }
        if has_workloads || has_graph {
            let of_nodes = Selection { namespace: Some(LEASES.to_owned()), ..Selection::all() };
            source = source
                .watch::<ReplicaSet>(Selection::all())
                .watch::<Deployment>(Selection::all())
                .watch::<Lease>(if has_graph { Selection::all() } else { of_nodes });
        }
        if has_graph {
            source = source
                .watch::<Namespace>(Selection::all())
                .watch::<ConfigMap>(Selection::all())
                .watch::<Secret>(Selection::all())
                .watch::<ServiceAccount>(Selection::all());
        }
        source.start()
    }

    /// Runs until `stop` is set; then waits for the writes that are under way.
    pub(crate) async fn run(
        mut self,
        mut leadership: mpsc::UnboundedReceiver<Leadership>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut source = self.subscribe();
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
        // A process that was stopped has not seen the renewals of Leases.
        if now.duration_since(self.last_beat) > STOPPED {
            self.see_renewals_again(now);
        }
        self.last_beat = now;
        for controller in &mut self.controllers {
            self.metrics.update(controller, now);
        }
        if self.leads && self.listed && now >= self.next_resync {
            self.next_resync = now + self.resync_period;
            tracing::debug!("resync: every object is compared again");
            self.controllers.iter_mut().for_each(|controller| controller.resync(&self.views, now));
        }
    }

    /// Nodes are given time to renew their Leases.
    fn see_renewals_again(&mut self, now: Instant) {
        let mut touched = Vec::new();
        if let Some(workloads) = &mut self.views.workloads {
            workloads.nodes.resume(now, &mut touched);
        }
        self.touch(&touched, None);
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
                let touched = self.views.apply(event, Instant::now());
                self.touch(&touched, None);
                if !self.listed && self.views.is_listed() {
                    self.listed = true;
                    let (services, pods) = self.views.cluster.size();
                    tracing::info!(services, pods, "listed all objects");
                }
            }
            Notice::Rejected(rejected) => {
                if let Some(resource) = rejected.resource {
                    self.views.keep(resource, &Key::new(&rejected.namespace, &rejected.name));
                }
                tracing::warn!("{rejected}");
            }
            Notice::Outage(outage) => {
                tracing::warn!("{outage}");
                if is_of_nodes(outage.resource)
                    && let Some(workloads) = &mut self.views.workloads
                {
                    workloads.nodes.pause();
                }
                self.outages.insert(outage.resource);
            }
            Notice::Recovered(resource) => {
                self.outages.remove(&resource);
                if is_of_nodes(resource) && !self.outages.iter().any(|resource| is_of_nodes(*resource)) {
                    self.see_renewals_again(Instant::now());
                }
                let resource = resource.map(|resource| resource.to_string()).unwrap_or_default();
                tracing::info!(resource, "the API server can be read again");
            }
        }
    }

    /// Adds keys to the queues of all controllers but one: the one whose write the change is.
    fn touch(&mut self, touched: &[Touched], except: Option<usize>) {
        let now = Instant::now();
        for touched in touched {
            for (index, controller) in self.controllers.iter_mut().enumerate() {
                if Some(index) != except {
                    controller.touch(touched, &self.views, now);
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
            self.views.work_ended(&work.objects);
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
                let clock = Clock { now: Instant::now(), wall: seconds_since_epoch() };
                let plan = self.controllers[index].logic.reconcile(&self.views, &key, clock);
                let controller = &self.controllers[index];
                self.metrics.reconciled(controller.kind, &plan, self.views.cluster.service(&key), clock.now);
                plan.notes.iter().for_each(|note| controller.record(&self.views, &key, note));
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
        let kind = self.controllers[index].kind;
        if let Some(missing) = &plan.incomplete {
            tracing::debug!(controller = kind.name(), service = %key, "endpoints are incomplete: {missing}");
        }
        if plan.writes.is_empty() && plan.reads.is_empty() {
            self.finish(index, &key, false, plan.again_after);
            return;
        }
        plan.writes.iter().for_each(|reasoned| log_write(kind, &key, reasoned));
        self.controllers[index].working += 1;
        let objects = objects_of(&plan);
        let is_write = !plan.writes.is_empty();
        self.views.work_begins(&objects);
        let again_after = plan.again_after.or((!plan.reads.is_empty()).then_some(Duration::ZERO));
        let (client, owned) = (self.client.clone(), key.clone());
        let task = self.tasks.spawn(async move { (index, owned, execute(client, plan).await) });
        self.working.insert((index, key), Work { task, objects, is_write, again_after });
    }

    /// The work on a key has ended. After a success the key comes back if the plan says so.
    fn finish(&mut self, index: usize, key: &Key, failed: bool, again_after: Option<Duration>) {
        let (controller, now) = (&mut self.controllers[index], Instant::now());
        if !failed {
            controller.logic.succeeded(key);
        }
        controller.queue.done(key, failed, now);
        if let Some(wait) = again_after.filter(|_| !failed) {
            controller.queue.add(key, now + wait, now);
        }
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
        let (mut touched, now) = (Vec::new(), Instant::now());
        for seen in outcome.seen {
            match seen {
                Seen::Stored(object) => self.views.stored(object, now, &mut touched),
                Seen::Deleted(resource, key) => {
                    self.views.deletion_accepted(resource, &key, &mut touched);
                }
                Seen::Read(read, found) => self.views.was_read(&read, found, now, &mut touched),
            }
        }
        self.views.work_ended(&work.objects);
        // What was read, and not written, is news for this controller too.
        self.touch(&touched, work.is_write.then_some(index));
        let controller = &mut self.controllers[index];
        outcome.notes.iter().for_each(|note| controller.record(&self.views, &key, note));
        if let Some(failure) = &outcome.failure {
            let attempt = controller.queue.failures(&key) + 1;
            let (name, message) = (controller.kind.name(), &failure.message);
            if failure.is_conflict && attempt < CONFLICTS {
                tracing::debug!(controller = name, %key, write = failure.write, "object has changed; trying again");
            } else {
                tracing::warn!(controller = name, %key, attempt, "{message}");
                if let Some(note) = controller.logic.failed(&key, failure) {
                    controller.record(&self.views, &key, &note);
                }
            }
        }
        self.finish(index, &key, outcome.failure.is_some(), work.again_after.filter(|_| !outcome.gave_up));
    }
}

/// The objects that a plan writes or reads.
fn objects_of(plan: &Plan) -> Vec<ObjectId> {
    let written = plan.writes.iter().map(|reasoned| (reasoned.write.resource(), reasoned.write.key()));
    let read = plan.reads.iter().map(|read| (read.resource, read.key.clone()));
    let confirmed = plan.confirm.iter().map(|(resource, version)| (*resource, version.key.clone()));
    written.chain(read).chain(confirmed).collect()
}

/// Logs a write and its reason.
fn log_write(kind: Kind, key: &Key, reasoned: &Reasoned) {
    let (operation, resource) = (reasoned.write.operation(), reasoned.write.resource());
    let (object, reason) = (reasoned.write.key(), &reasoned.reason);
    if kind.is_of_endpoints() {
        tracing::info!(target: CHANGES, service = %key, operation, kind = %resource, %object, reason, "writing endpoints");
    } else {
        tracing::info!(target: CHANGES, controller = kind.name(), operation, kind = %resource, %object, reason, "writing");
    }
}

/// Whether Nodes cannot be watched while a resource cannot be read.
fn is_of_nodes(resource: Option<ResourceType>) -> bool {
    resource.is_none_or(|resource| resource == Node::TYPE || resource == Lease::TYPE)
}

fn seconds_since_epoch() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
