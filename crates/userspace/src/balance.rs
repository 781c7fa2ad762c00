//! Which endpoint a connection goes to.
//!
//! A [`Port`] is one port of a Service in one family, shared by all threads: its endpoints, whose turn it is, which
//! clients stick to whom, and which endpoints are left aside because they keep failing.

use crate::clock::Moment;
use crate::redirect::{Reach, wants_header};
use crate::stats::PortStats;
use portway_dataplane::{Balancing, UserspaceSettings};
use portway_model::{Family, PortName, PortPlan, Protocol, ServiceName, ServicePlan, Target};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How often an endpoint fails in a row before it is left aside.
const FAILURES: u32 = 3;
/// For how long, at first; it doubles with every further failure.
const ASIDE: Duration = Duration::from_secs(2);
/// And at most.
const ASIDE_LIMIT: Duration = Duration::from_secs(60);
/// Clients that are remembered for one port.
const CLIENTS: usize = 65_536;

/// An endpoint of one port.
#[derive(Debug)]
pub struct Endpoint {
    /// Where it is.
    pub target: Target,
    open: AtomicU32,
    failures: AtomicU32,
    aside: AtomicU64,
    leaves: AtomicU64,
}

impl Endpoint {
    fn new(target: Target) -> Endpoint {
        let (open, failures) = (AtomicU32::new(0), AtomicU32::new(0));
        Endpoint { target, open, failures, aside: AtomicU64::new(0), leaves: AtomicU64::new(0) }
    }

    /// It accepted a connection.
    pub fn succeeded(&self) {
        self.failures.store(0, Relaxed);
        self.aside.store(0, Relaxed);
    }

    /// It did not. One that keeps failing is left aside for a while; those who had asked it before do not count then.
    pub fn failed(&self, now: Moment) {
        if self.is_aside(now) {
            return;
        }
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        if let Some(further) = failures.checked_sub(FAILURES) {
            let pause = ASIDE.saturating_mul(1 << further.min(10)).min(ASIDE_LIMIT);
            self.aside.store(now.after(pause).number(), Relaxed);
        }
    }

    /// Whether it is left aside.
    pub fn is_aside(&self, now: Moment) -> bool {
        self.aside.load(Relaxed) > now.number()
    }

    /// Until when its connections may go on, if it has left.
    pub fn leaves(&self) -> Option<Moment> {
        Moment::from_number(self.leaves.load(Relaxed))
    }

    fn leave(&self, until: Option<Moment>) {
        self.leaves.store(until.map_or(0, Moment::number), Relaxed);
    }

    /// Connections through us.
    pub fn open(&self) -> u32 {
        self.open.load(Relaxed)
    }

    /// One more, for as long as the lease lives.
    fn lease(self: &Arc<Self>) -> Lease {
        self.open.fetch_add(1, Relaxed);
        Lease(self.clone())
    }
}

/// A connection's hold on its endpoint.
#[derive(Debug)]
pub struct Lease(Arc<Endpoint>);

impl std::ops::Deref for Lease {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// Which port of which Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortId {
    /// The Service.
    pub service: ServiceName,
    /// The port's name.
    pub port: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// The family.
    pub family: Family,
}

/// One port of a Service in one family.
#[derive(Debug)]
pub struct Port {
    /// Whose it is.
    pub id: PortId,
    /// What is counted.
    pub stats: PortStats,
    header: AtomicBool,
    choice: Mutex<Choice>,
}

#[derive(Debug, Default)]
struct Choice {
    sets: [Vec<Arc<Endpoint>>; 2],
    /// Those that are no longer chosen, but may still answer a UDP client.
    serving: Vec<Arc<Endpoint>>,
    next: [usize; 2],
    affinity: Option<Duration>,
    sticky: HashMap<IpAddr, (Target, Moment)>,
    /// Those that left with connections, and may come back.
    left: Vec<Weak<Endpoint>>,
}

impl Port {
    /// One without endpoints.
    pub fn new(id: PortId) -> Port {
        Port { id, stats: PortStats::default(), header: AtomicBool::new(false), choice: Mutex::default() }
    }

    fn choice(&self) -> MutexGuard<'_, Choice> {
        // Nothing in here is left half done by a panic.
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its pods want to be told who the client is.
    pub fn wants_header(&self) -> bool {
        self.header.load(Relaxed)
    }

    /// Takes on a plan. Endpoints that are in it go on as they are; whether some left that have connections comes
    /// back.
    pub fn update(
        &self,
        service: &ServicePlan,
        plan: &PortPlan,
        settings: &UserspaceSettings,
        now: Moment,
    ) -> bool {
        self.header.store(wants_header(service).unwrap_or(false), Relaxed);
        let mut choice = self.choice();
        let mut known: HashMap<Target, Arc<Endpoint>> = HashMap::new();
        let left: Vec<Arc<Endpoint>> = choice.left.drain(..).filter_map(|e| e.upgrade()).collect();
        for endpoint in left.into_iter().chain(choice.endpoints().cloned()) {
            known.insert(endpoint.target, endpoint);
        }
        let mut take = |targets: &[Target]| -> Vec<Arc<Endpoint>> {
            let one = |t: &Target| known.entry(*t).or_insert_with(|| Arc::new(Endpoint::new(*t))).clone();
            targets.iter().map(one).collect()
        };
        choice.sets = [take(&plan.cluster), take(&plan.local)];
        choice.serving = take(&plan.also_serving);
        choice.affinity = plan.affinity.map(|seconds| Duration::from_secs(seconds.into()));
        let chosen: HashSet<Target> = plan.cluster.iter().chain(&plan.local).copied().collect();
        let sticks = choice.affinity.is_some();
        choice.sticky.retain(|_, (target, _)| sticks && chosen.contains(target));
        let gone = now.after(settings.drain_timeout);
        let mut drains = false;
        for endpoint in known.into_values() {
            let stays = chosen.contains(&endpoint.target) || plan.also_serving.contains(&endpoint.target);
            let until = endpoint.leaves().unwrap_or(gone);
            endpoint.leave((!stays).then_some(until));
            if !stays && endpoint.open() > 0 {
                drains = true;
                choice.left.push(Arc::downgrade(&endpoint));
            }
        }
        drains
    }

    /// The Service is gone, and all its endpoints with it. Whether they have connections comes back.
    pub fn retire(&self, drain: Duration, now: Moment) -> bool {
        let mut choice = self.choice();
        let mut left: Vec<Weak<Endpoint>> = Vec::new();
        for endpoint in choice.endpoints() {
            endpoint.leave(Some(now.after(drain)));
            if endpoint.open() > 0 {
                left.push(Arc::downgrade(endpoint));
            }
        }
        (choice.sets, choice.serving, choice.sticky) = Default::default();
        choice.left.extend(left);
        choice.left.iter().any(|endpoint| endpoint.strong_count() > 0)
    }

    /// Whether there is nobody to choose.
    pub fn is_empty(&self, reach: Reach) -> bool {
        self.choice().sets[reach as usize].is_empty()
    }

    /// Chooses an endpoint for a client, but none of those that were tried. One that is left aside is chosen only if all
    /// others are too, or were tried.
    pub fn choose(
        &self,
        reach: Reach,
        client: IpAddr,
        tried: &[Target],
        now: Moment,
        balancing: Balancing,
    ) -> Option<Lease> {
        let mut choice = self.choice();
        let stuck = choice.stuck(reach, client, tried, now);
        let chosen = stuck.or_else(|| choice.turn(reach, tried, now, balancing))?;
        choice.stick(client, chosen.target, now);
        Some(chosen.lease())
    }

    /// Whether there is somebody who was not tried.
    pub fn has_other(&self, reach: Reach, tried: &[Target]) -> bool {
        self.choice().sets[reach as usize].iter().any(|e| !tried.contains(&e.target))
    }

    /// Takes over what another port knows of endpoints: it is the same one under another name. To be called before the next
    /// [`Port::update`].
    pub fn adopt(&self, other: &Port) {
        let left: Vec<Weak<Endpoint>> = other.choice().left.drain(..).collect();
        self.choice().left.extend(left);
    }
}

impl Choice {
    fn endpoints(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.sets.iter().flatten().chain(&self.serving)
    }

    /// The endpoint that the client sticks to.
    fn stuck(&self, reach: Reach, client: IpAddr, tried: &[Target], now: Moment) -> Option<Arc<Endpoint>> {
        let (target, until) = self.sticky.get(&client).filter(|_| self.affinity.is_some())?;
        let usable = |e: &&Arc<Endpoint>| e.target == *target && !tried.contains(target) && !e.is_aside(now);
        if *until <= now {
            return None;
        }
        self.sets[reach as usize].iter().find(usable).cloned()
    }

    fn stick(&mut self, client: IpAddr, target: Target, now: Moment) {
        let Some(time) = self.affinity else { return };
        if self.sticky.len() >= CLIENTS && !self.sticky.contains_key(&client) {
            self.sticky.retain(|_, (_, until)| *until > now);
            if self.sticky.len() >= CLIENTS {
                // Those that would be forgotten soonest go, a part of them at once.
                let mut ends: Vec<Moment> = self.sticky.values().map(|(_, until)| *until).collect();
                let (_, bound, _) = ends.select_nth_unstable(CLIENTS / 8);
                let bound = *bound;
                self.sticky.retain(|_, (_, until)| *until > bound);
            }
        }
        self.sticky.insert(client, (target, now.after(time)));
    }

    /// The endpoint whose turn it is.
    fn turn(
        &mut self,
        reach: Reach,
        tried: &[Target],
        now: Moment,
        balancing: Balancing,
    ) -> Option<Arc<Endpoint>> {
        let (set, next) = (&self.sets[reach as usize], &mut self.next[reach as usize]);
        let from = *next % set.len().max(1);
        let order = || (from..set.len()).chain(0..from).filter(|i| !tried.contains(&set[*i].target));
        let healthy = || order().filter(|i| !set[*i].is_aside(now));
        let chosen = match balancing {
            Balancing::RoundRobin => healthy().next(),
            // The first of several alike, so that turns are taken among them.
            Balancing::LeastConnections => healthy().min_by_key(|i| set[*i].open()),
        };
        let chosen = chosen.or_else(|| order().next())?;
        *next = chosen + 1;
        Some(set[chosen].clone())
    }
}

#[cfg(test)]
mod tests;
