//! One controller as the runner sees it: its queue, how many keys it works on at a time, and its decisions.

use crate::cluster::Touched;
use crate::execute::Failure;
use crate::key::Key;
use crate::kind::Kind;
use crate::plan::{Figures, Note, Plan};
use crate::queue::Queue;
use crate::views::Views;
use portway_client::{Recorder, Regarding};
use std::time::{Duration, Instant};

/// The time of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// For durations: it never goes back.
    pub now: Instant,
    /// For times in objects, in seconds since the epoch.
    pub wall: i64,
}

/// The decisions of a controller, and the state that it keeps between them. No I/O.
pub(crate) trait Logic {
    /// How long to wait before the controller works on a key that a change touched; `None` if the change does not
    /// concern it.
    fn delay(&mut self, touched: &Touched, views: &Views) -> Option<Duration>;

    /// Decides what to write for a key.
    fn reconcile(&mut self, views: &Views, key: &Key, clock: Clock) -> Plan;

    /// The writes for a key are done.
    fn succeeded(&mut self, _key: &Key) {}

    /// A write for a key failed. Returns the Event about it.
    fn failed(&mut self, _key: &Key, _failure: &Failure) -> Option<Note> {
        None
    }

    /// The object that Events for a key are about.
    fn subject(&self, views: &Views, key: &Key) -> Regarding;

    /// All keys, for a resync.
    fn keys(&self, views: &Views) -> Vec<Key>;

    /// The figures of all keys together.
    fn total(&self) -> Figures {
        Figures::default()
    }
}

/// A controller.
pub(crate) struct Controller {
    pub(crate) kind: Kind,
    pub(crate) queue: Queue,
    pub(crate) concurrency: usize,
    pub(crate) working: usize,
    pub(crate) recorder: Recorder,
    pub(crate) logic: Box<dyn Logic + Send>,
}

impl Controller {
    pub(crate) fn new(
        kind: Kind,
        concurrency: usize,
        recorder: Recorder,
        logic: Box<dyn Logic + Send>,
    ) -> Controller {
        Controller { kind, queue: Queue::default(), concurrency, working: 0, recorder, logic }
    }

    /// Adds the key of a change to the queue if the change concerns this controller.
    pub(crate) fn touch(&mut self, touched: &Touched, views: &Views, now: Instant) {
        if let Some(delay) = self.logic.delay(touched, views) {
            self.queue.add(&touched.key, now + delay, now);
        }
    }

    /// Adds all keys to the queue.
    pub(crate) fn resync(&mut self, views: &Views, now: Instant) {
        for key in self.logic.keys(views) {
            self.queue.add(&key, now, now);
        }
    }

    /// Records an Event.
    pub(crate) fn record(&self, views: &Views, key: &Key, note: &Note) {
        let about = note.about.clone().unwrap_or_else(|| self.logic.subject(views, key));
        match note.warning {
            true => self.recorder.warn(about, note.reason, &note.text),
            false => self.recorder.inform(about, note.reason, &note.text),
        }
    }
}
