//! Load balancing: which endpoint a connection goes to.
//!
//! A [`Port`] is one port of a Service in one family, shared by all threads: its endpoints, the position of round
//! robin, the endpoint of each client with session affinity, and which endpoints are ejected because they keep failing.

use crate::clock::Moment;
use crate::redirect::{EndpointScope, wants_proxy_header};
use crate::stats::PortStats;
use portway_dataplane::{Balancing, UserspaceSettings};
use portway_model::{Family, PortName, PortPlan, Protocol, ServiceName, ServicePlan, Target};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How many times in a row an endpoint fails before it is ejected.
const EJECT_AFTER: u32 = 3;
/// The duration of the first ejection; it doubles with every further failure.
const FIRST_EJECTION: Duration = Duration::from_secs(2);
/// The longest ejection.
const MAX_EJECTION: Duration = Duration::from_secs(60);
/// The maximum number of clients with session affinity to an endpoint of one port.
const MAX_CLIENTS: usize = 65_536;

/// An endpoint of one port.
#[derive(Debug)]
pub struct Endpoint {
    /// Its address and port.
    pub target: Target,
    open: AtomicU32,
    failures: AtomicU32,
    ejected_until: AtomicU64,
    drains_until: AtomicU64,
}

impl Endpoint {
    fn new(target: Target) -> Endpoint {
        let (open, failures) = (AtomicU32::new(0), AtomicU32::new(0));
        Endpoint { target, open, failures, ejected_until: AtomicU64::new(0), drains_until: AtomicU64::new(0) }
    }

    /// Records that it accepted a connection.
    pub fn succeeded(&self) {
        self.failures.store(0, Relaxed);
        self.ejected_until.store(0, Relaxed);
    }

    /// Records that it did not accept a connection. An endpoint that keeps failing is ejected for a while; failures
    /// during an ejection do not prolong it, because those attempts began before it.
    pub fn failed(&self, now: Moment) {
        if self.is_ejected(now) {
            return;
        }
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        if let Some(further) = failures.checked_sub(EJECT_AFTER) {
            let duration = FIRST_EJECTION.saturating_mul(1 << further.min(10)).min(MAX_EJECTION);
            self.ejected_until.store(now.after(duration).number(), Relaxed);
        }
    }

    /// Whether it is ejected.
    pub fn is_ejected(&self, now: Moment) -> bool {
        self.ejected_until.load(Relaxed) > now.number()
    }

    /// Until when its connections may go on, if it is no longer an endpoint of the port.
    pub fn drains_until(&self) -> Option<Moment> {
        Moment::from_number(self.drains_until.load(Relaxed))
    }

    fn set_draining(&self, until: Option<Moment>) {
        self.drains_until.store(until.map_or(0, Moment::number), Relaxed);
    }

    /// The number of its connections through this relay.
    pub fn open(&self) -> u32 {
        self.open.load(Relaxed)
    }

    /// Counts a connection for as long as the lease lives.
    fn lease(self: &Arc<Self>) -> Lease {
        self.open.fetch_add(1, Relaxed);
        Lease(self.clone())
    }
}

/// A connection's reference to its endpoint.
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

/// The identity of a Service port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortId {
    /// The Service.
    pub service: ServiceName,
    /// The name of the port.
    pub port: PortName,
    /// The protocol.
    pub protocol: Protocol,
    /// The address family.
    pub family: Family,
}

/// One port of a Service in one family.
#[derive(Debug)]
pub struct Port {
    /// Its identity.
    pub id: PortId,
    /// Its counters.
    pub stats: PortStats,
    proxy_header: AtomicBool,
    state: Mutex<BalancerState>,
}

#[derive(Debug, Default)]
struct BalancerState {
    sets: [Vec<Arc<Endpoint>>; 2],
    /// Terminating endpoints: no longer chosen, but still answering UDP clients.
    serving: Vec<Arc<Endpoint>>,
    next: [usize; 2],
    affinity: Option<Duration>,
    clients: HashMap<IpAddr, (Target, Moment)>,
    /// Removed endpoints with open connections; they may be added again.
    draining: Vec<Weak<Endpoint>>,
}

impl Port {
    /// A port without endpoints.
    pub fn new(id: PortId) -> Port {
        Port {
            id,
            stats: PortStats::default(),
            proxy_header: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, BalancerState> {
        // No update of the state can panic halfway, so the state of a poisoned lock is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its pods expect a PROXY protocol header.
    pub fn wants_proxy_header(&self) -> bool {
        self.proxy_header.load(Relaxed)
    }

    /// Applies a plan. Endpoints that stay keep their state. Returns whether endpoints with open connections were
    /// removed.
    pub fn update(
        &self,
        service: &ServicePlan,
        plan: &PortPlan,
        settings: &UserspaceSettings,
        now: Moment,
    ) -> bool {
        self.proxy_header.store(wants_proxy_header(service).unwrap_or(false), Relaxed);
        let mut state = self.state();
        let mut known: HashMap<Target, Arc<Endpoint>> = HashMap::new();
        let draining: Vec<Arc<Endpoint>> = state.draining.drain(..).filter_map(|e| e.upgrade()).collect();
        for endpoint in draining.into_iter().chain(state.endpoints().cloned()) {
            known.insert(endpoint.target, endpoint);
        }
        let mut take = |targets: &[Target]| -> Vec<Arc<Endpoint>> {
            let one = |t: &Target| known.entry(*t).or_insert_with(|| Arc::new(Endpoint::new(*t))).clone();
            targets.iter().map(one).collect()
        };
        state.sets = [take(&plan.cluster), take(&plan.local)];
        state.serving = take(&plan.also_serving);
        state.affinity = plan.affinity.map(|seconds| Duration::from_secs(seconds.into()));
        let chosen: HashSet<Target> = plan.cluster.iter().chain(&plan.local).copied().collect();
        let has_affinity = state.affinity.is_some();
        state.clients.retain(|_, (target, _)| has_affinity && chosen.contains(target));
        let drain_end = now.after(settings.drain_timeout);
        let mut drains = false;
        for endpoint in known.into_values() {
            let stays = chosen.contains(&endpoint.target) || plan.also_serving.contains(&endpoint.target);
            let until = endpoint.drains_until().unwrap_or(drain_end);
            endpoint.set_draining((!stays).then_some(until));
            if !stays && endpoint.open() > 0 {
                drains = true;
                state.draining.push(Arc::downgrade(&endpoint));
            }
        }
        drains
    }

    /// Removes all endpoints, because the port was removed. Returns whether they have open connections.
    pub fn retire(&self, drain: Duration, now: Moment) -> bool {
        let mut state = self.state();
        let mut draining: Vec<Weak<Endpoint>> = Vec::new();
        for endpoint in state.endpoints() {
            endpoint.set_draining(Some(now.after(drain)));
            if endpoint.open() > 0 {
                draining.push(Arc::downgrade(endpoint));
            }
        }
        (state.sets, state.serving, state.clients) = Default::default();
        state.draining.extend(draining);
        state.draining.iter().any(|endpoint| endpoint.strong_count() > 0)
    }

    /// The endpoints of a scope.
    pub fn targets(&self, scope: EndpointScope) -> Vec<Target> {
        self.state().sets[scope as usize].iter().map(|endpoint| endpoint.target).collect()
    }

    /// Whether there is no endpoint in a scope.
    pub fn is_empty(&self, scope: EndpointScope) -> bool {
        self.state().sets[scope as usize].is_empty()
    }

    /// Chooses an endpoint for a client; none if all were tried. An ejected endpoint is chosen only if all other
    /// endpoints are ejected too, or were tried.
    pub fn choose(
        &self,
        scope: EndpointScope,
        client: IpAddr,
        tried: &[Target],
        now: Moment,
        balancing: Balancing,
    ) -> Option<Lease> {
        let mut state = self.state();
        let known = state.by_affinity(scope, client, tried, now);
        let chosen = known.or_else(|| state.next_endpoint(scope, tried, now, balancing))?;
        state.store_affinity(client, chosen.target, now);
        Some(chosen.lease())
    }

    /// Whether a scope has an endpoint that was not tried.
    pub fn has_untried(&self, scope: EndpointScope, tried: &[Target]) -> bool {
        self.state().sets[scope as usize].iter().any(|e| !tried.contains(&e.target))
    }

    /// Takes the draining endpoints of another port, which is the same port under its old name. The next
    /// [`Port::update`] reuses those that are in its plan.
    pub fn take_draining_from(&self, other: &Port) {
        let draining: Vec<Weak<Endpoint>> = other.state().draining.drain(..).collect();
        self.state().draining.extend(draining);
    }
}

impl BalancerState {
    fn endpoints(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.sets.iter().flatten().chain(&self.serving)
    }

    /// The endpoint that the client had before, if session affinity still holds.
    fn by_affinity(
        &self,
        scope: EndpointScope,
        client: IpAddr,
        tried: &[Target],
        now: Moment,
    ) -> Option<Arc<Endpoint>> {
        let (target, until) = self.clients.get(&client).filter(|_| self.affinity.is_some())?;
        let usable =
            |e: &&Arc<Endpoint>| e.target == *target && !tried.contains(target) && !e.is_ejected(now);
        if *until <= now {
            return None;
        }
        self.sets[scope as usize].iter().find(usable).cloned()
    }

    fn store_affinity(&mut self, client: IpAddr, target: Target, now: Moment) {
        let Some(time) = self.affinity else { return };
        if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&client) {
            self.clients.retain(|_, (_, until)| *until > now);
            if self.clients.len() >= MAX_CLIENTS {
                // The eighth that would expire soonest is removed, so that this sort is rare.
                let mut ends: Vec<Moment> = self.clients.values().map(|(_, until)| *until).collect();
                let (_, bound, _) = ends.select_nth_unstable(MAX_CLIENTS / 8);
                let bound = *bound;
                self.clients.retain(|_, (_, until)| *until > bound);
            }
        }
        self.clients.insert(client, (target, now.after(time)));
    }

    /// The next endpoint in turn, or the one with the fewest connections.
    fn next_endpoint(
        &mut self,
        scope: EndpointScope,
        tried: &[Target],
        now: Moment,
        balancing: Balancing,
    ) -> Option<Arc<Endpoint>> {
        let (set, next) = (&self.sets[scope as usize], &mut self.next[scope as usize]);
        let from = *next % set.len().max(1);
        let order = || (from..set.len()).chain(0..from).filter(|i| !tried.contains(&set[*i].target));
        let healthy = || order().filter(|i| !set[*i].is_ejected(now));
        let chosen = match balancing {
            Balancing::RoundRobin => healthy().next(),
            // `min_by_key` takes the first of equals, so that equals take turns.
            Balancing::LeastConnections => healthy().min_by_key(|i| set[*i].open()),
        };
        let chosen = chosen.or_else(|| order().next())?;
        *next = chosen + 1;
        Some(set[chosen].clone())
    }
}

#[cfg(test)]
mod tests;
