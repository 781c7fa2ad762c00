//! Noticing that somebody else changed our rules.
//!
//! nf_tables announces every change: a thread listens, in the nftables mode to our own table, in the iptables mode with
//! its nf_tables variant to the tables that all share. The old xtables announce nothing: their sizes are looked at
//! every second, which costs a system call for each table, and everything is compared once in a while. So it is with what
//! the ipvs mode is made of besides its rules.

use super::Outcome;
use super::plane::Plane;
use portway_dataplane::Dataplane;
use portway_iptables::Variant;
use portway_netlink::nft::{Commit, Monitor};
use portway_nftables::TABLE;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The tables of iptables that we have something in.
const SHARED_TABLES: [&str; 3] = ["nat", "filter", "mangle"];
/// How often sizes are looked at.
const GLANCE: Duration = Duration::from_secs(1);
/// How often everything is compared where nothing is announced, at most, unless the configuration says otherwise.
const AUDIT: Duration = Duration::from_secs(30);
/// And where changes in shared tables are announced: whose one was is told by circumstances.
const RARE_AUDIT: Duration = Duration::from_secs(300);
/// Comparing everything may take this part of the time.
const AUDIT_SHARE: u32 = 100;
/// Looking at a part of it, this part.
const LOOK_SHARE: u32 = 30;
/// How long a thread may go on listening for nobody.
const LINGER: Duration = Duration::from_secs(2);
/// What is heard and not yet looked at.
const BACKLOG: usize = 64;

/// What the listening thread has to tell.
type Heard = Result<Vec<Commit>, String>;

/// Why our rules may not be as we left them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// Somebody changed them; who it was, as far as is known.
    Known {
        /// Who.
        by: String,
    },
    /// Somebody changed something in the same tables, maybe only their own.
    Vague,
}

/// The ear on a mode's planes.
#[derive(Debug)]
pub(super) struct Ear {
    kind: Kind,
    /// Something has to be looked at, for nobody tells.
    glances: bool,
    /// What the thread that listens tells; none until it does.
    heard: Option<mpsc::Receiver<Heard>>,
    /// The generation before our own changes, while nobody listens.
    before: Option<u32>,
    /// When to glance next.
    glance: Instant,
    /// Until when a glance looks at nothing, after a false alarm.
    quiet: Instant,
    /// When a glance may look at what costs something again.
    look: Instant,
    /// When to compare everything next.
    audit: Option<Instant>,
    /// How often to, at most.
    audit_every: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Our own table, by the ports our changes come from.
    OwnTable,
    /// Tables that all share, by whose changes they are.
    SharedTables,
    /// Nothing is announced.
    Silent,
}

impl Ear {
    pub(super) fn new(planes: &[Plane]) -> Ear {
        let kind = match planes.first().and_then(Plane::variant) {
            Some(Variant::Legacy) => Kind::Silent,
            Some(Variant::Nft) => Kind::SharedTables,
            None => Kind::OwnTable,
        };
        let glances =
            kind == Kind::Silent || planes.iter().any(|p| matches!(p, Plane::Ipvs(_) | Plane::Userspace(_)));
        Ear {
            kind,
            glances,
            heard: None,
            before: None,
            glance: Instant::now() + GLANCE,
            quiet: Instant::now(),
            look: Instant::now(),
            audit: None,
            audit_every: AUDIT,
        }
    }

    /// Compares everything this often, where nothing is announced: whenever it is synced though nothing happened.
    pub(super) fn audit_every(&mut self, period: Duration) {
        self.audit_every = period;
    }

    /// To be called before a sync.
    pub(super) fn prepare(&mut self, planes: &mut [Plane]) {
        if self.heard.is_none() {
            self.before = generation(planes);
        }
        if self.audit.is_some_and(|due| due <= Instant::now()) {
            planes.iter_mut().for_each(Dataplane::distrust);
        }
    }

    /// To be called after a sync. Starts listening once the first is done: before, a hundred thousand of our own
    /// changes would be announced to us. Whether somebody may have slipped in between comes back.
    pub(super) fn listen(&mut self, planes: &mut [Plane], outcomes: &[Outcome]) -> bool {
        self.pace(outcomes);
        if self.kind == Kind::Silent {
            return false;
        }
        if self.heard.is_some() {
            return false;
        }
        self.heard = start(self.kind, planes);
        if self.kind == Kind::SharedTables {
            return missed(planes);
        }
        let changed = |o: &Outcome| o.result.as_ref().is_ok_and(|r| r.added + r.removed > 0);
        let ours = outcomes.iter().filter(|o| changed(o)).count() as u32;
        let now = generation(planes);
        self.before.zip(now).is_none_or(|(before, now)| now != before.wrapping_add(ours))
    }

    /// Stops listening; the next sync begins again.
    pub(super) fn begin_again(&mut self) {
        self.heard = None;
    }

    /// Whether changes by others would be noticed.
    pub(super) fn listens(&self) -> bool {
        self.kind == Kind::Silent || self.heard.is_some()
    }

    /// Looks again after a time that grows with what looking costs.
    fn pace(&mut self, outcomes: &[Outcome]) {
        let least = match self.kind {
            Kind::OwnTable => return,
            Kind::SharedTables if self.glances => self.audit_every,
            Kind::SharedTables => RARE_AUDIT,
            Kind::Silent => self.audit_every,
        };
        let full = || outcomes.iter().filter(|o| o.result.as_ref().is_ok_and(|r| r.full));
        let took: Duration = full().map(|o| o.took).sum();
        if !took.is_zero() {
            let now = Instant::now();
            self.audit = Some(now + least.max(took * AUDIT_SHARE));
            // What was a false alarm must not keep us busy.
            let did = |o: &Outcome| o.result.as_ref().is_ok_and(|r| r.added + r.removed > 0);
            let idle = if full().any(did) { Duration::ZERO } else { took * 10 };
            self.glance = now + GLANCE;
            self.quiet = now + idle;
        }
    }

    /// Listens, and looks if it is time; the next time is the later, the longer it took.
    fn glance_at(&mut self, planes: &mut [Plane]) -> bool {
        let started = Instant::now();
        self.glance = started + GLANCE;
        let mut differs = any(planes, Plane::hears_of_changes);
        if !differs && started >= self.quiet {
            differs = any(planes, Plane::has_other_sizes);
        }
        if !differs && started >= self.quiet.max(self.look) {
            differs = any(planes, Plane::looks_different);
            let now = Instant::now();
            self.look = now + (now - started) * LOOK_SHARE;
        }
        differs
    }

    /// Waits until somebody else may have changed our rules.
    ///
    /// May be dropped and called again at any time.
    pub(super) async fn tampered(&mut self, planes: &mut [Plane]) -> Suspicion {
        loop {
            let glance = self.glances.then_some(self.glance);
            let heard = tokio::select! {
                () = until(glance) => {
                    if self.glance_at(planes) {
                        return Suspicion::Vague;
                    }
                    continue;
                }
                heard = next(&mut self.heard) => heard,
            };
            match heard {
                Some(Ok(commits)) => {
                    if let Some(commit) = commits.iter().find(|c| concerns(planes, c)) {
                        let by = commit.process.as_ref();
                        let by = by.map_or("unknown".into(), |(pid, name)| format!("{name} (process {pid})"));
                        return Suspicion::Known { by };
                    }
                }
                // Notifications were lost, or made no sense: ours may have been among them.
                Some(Err(error)) => return Suspicion::Known { by: format!("unknown: {error}") },
                None => {
                    // The next sync listens again.
                    self.heard = None;
                    return Suspicion::Known { by: "unknown: nobody listened".to_owned() };
                }
            }
        }
    }
}

/// Asks all planes, and whether one of them says so.
fn any(planes: &mut [Plane], ask: fn(&mut Plane) -> bool) -> bool {
    planes.iter_mut().map(ask).fold(false, |any, one| any | one)
}

async fn until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}

async fn next(heard: &mut Option<mpsc::Receiver<Heard>>) -> Option<Heard> {
    match heard {
        Some(heard) => heard.recv().await,
        None => std::future::pending().await,
    }
}

/// The generation of the ruleset, where there is one.
fn generation(planes: &mut [Plane]) -> Option<u32> {
    let first = planes.first_mut()?;
    match first.nftables() {
        Some(plane) => plane.generation().ok(),
        None => first.iptables()?.generation(),
    }
}

/// Whether, before anybody listened, somebody else had a hand in the ruleset: while our tools were at work, or since.
fn missed(planes: &mut [Plane]) -> bool {
    let now = generation(planes);
    let last = planes.iter_mut().filter_map(Plane::iptables).filter_map(|p| p.known_generation()).max();
    now != last || planes.iter_mut().filter_map(Plane::iptables).any(|p| !p.was_alone())
}

/// Whether a change by somebody else touched something of ours.
fn concerns(planes: &mut [Plane], commit: &Commit) -> bool {
    let mut shared = planes.iter_mut().filter_map(Plane::iptables).peekable();
    if shared.peek().is_none() {
        return true;
    }
    let mut hooks = false;
    for plane in shared {
        if plane.made(commit) {
            return false;
        }
        for touched in commit.touched.iter().filter(|t| plane.is_family(t.family)) {
            match &touched.chain {
                Some(chain) if portway_iptables::is_ours(chain) => return true,
                // Another program's own chain, or one that everybody has rules in: are ours still there?
                Some(_) => hooks = true,
                None => return true,
            }
        }
        if std::mem::take(&mut hooks) && plane.lacks_hooks() {
            return true;
        }
    }
    false
}

/// Starts a thread that listens.
fn start(kind: Kind, planes: &mut [Plane]) -> Option<mpsc::Receiver<Heard>> {
    let ports: Vec<u32> = planes.iter_mut().filter_map(Plane::nftables).map(|p| p.port()).collect();
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let tables: &[&str] = if kind == Kind::OwnTable { &[TABLE] } else { &SHARED_TABLES };
    let listening = Monitor::open(&ports).map_err(std::io::Error::other).and_then(|monitor| {
        std::thread::Builder::new()
            .name("monitor".into())
            .stack_size(64 * 1024)
            .spawn(move || watch(monitor, tables, sender))
    });
    match listening {
        Ok(_) => Some(receiver),
        Err(error) => {
            tracing::warn!(%error, "changes made by others cannot be noticed");
            None
        }
    }
}

/// Tells of changes, on a thread of its own, as long as somebody wants to know.
fn watch(mut monitor: Monitor, tables: &[&str], tell: mpsc::Sender<Heard>) {
    while !tell.is_closed() {
        let heard = monitor.wait_for(tables, LINGER).map_err(|error| error.to_string());
        let silence = matches!(&heard, Ok(commits) if commits.is_empty());
        if !silence && tell.blocking_send(heard).is_err() {
            return;
        }
    }
}
