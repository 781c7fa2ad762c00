//! The userspace mode as a [`Backend`]: it sends every plan to the relay, which makes routes of it, and to the
//! redirecting rules, with listeners in place of endpoints.
//!
//! The rules are those of another mode (nftables or iptables), which is also a [`Backend`]. Calls that do not concern
//! the relay are passed on to it.

use crate::eval::Evaluator;
use crate::leftovers;
use crate::redirect::{self, ListenerPorts};
use crate::relay_client::{RelayClient, is_superseded};
use portway_dataplane::trace::{Host, Packet, Trace};
use portway_dataplane::{
    Backend, Clear, CounterSource, Drift, DriftSignal, Error, Features, IpvsSettings, Location, Mode,
    OpenOptions, Outcome, PlanChanges, Refused, Report, Section, Settings, UserspaceSettings, Wake,
};
use portway_model::{Family, PortPlan, ServiceName, ServicePlan};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between attempts to reach or start a relay.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The time between checks that the relay still runs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The userspace mode, over the redirecting rules of another mode.
#[derive(Debug)]
pub struct Userspace {
    rules: Box<dyn Backend>,
    relay: Arc<RelayClient>,
    families: Vec<FamilyState>,
    next_check: Instant,
}

/// The state of one family.
#[derive(Debug)]
struct FamilyState {
    family: Family,
    /// The number of the connection to the relay over which all plans were sent; 0 if there was none.
    synced_connection: u64,
    plans: HashMap<ServiceName, ServicePlan>,
    /// The listeners that the rules point to; `None` if they point to endpoints.
    listeners: Option<ListenerPorts>,
    /// The last listeners that the rules pointed to.
    previous: Option<ListenerPorts>,
    /// The rules point to endpoints, because the agent is about to stop.
    handed_over: bool,
    /// When the last sync failed to reach the relay; `None` if it did not fail.
    relay_failed_at: Option<Instant>,
    /// An agent of a later release has taken over; its rules must not be changed.
    superseded: bool,
    /// Services that changed while superseded: the redirecting rules have not been given their plans.
    unsynced: HashSet<ServiceName>,
}

impl FamilyState {
    fn new(family: Family) -> FamilyState {
        FamilyState {
            family,
            synced_connection: 0,
            plans: HashMap::new(),
            listeners: None,
            previous: None,
            handed_over: false,
            relay_failed_at: None,
            superseded: false,
            unsynced: HashSet::new(),
        }
    }

    /// The plan of a Service for the redirecting rules.
    fn plan_for_rules(&self, plan: &ServicePlan) -> ServicePlan {
        match &self.listeners {
            Some(ports) if !self.handed_over => redirect::to_listeners(plan, ports),
            _ => redirect::to_endpoints(plan),
        }
    }

    /// Stores changed plans. Returns the Services whose PROXY protocol annotation is invalid.
    fn stage_changes(&mut self, changes: &PlanChanges) -> Vec<Refused> {
        let mut degraded = Vec::new();
        for (name, plan) in changes {
            if let Some(Err(reason)) = plan.as_ref().map(redirect::wants_proxy_header) {
                degraded.push(Refused { service: name.clone(), reason });
            }
            match plan {
                Some(plan) => drop(self.plans.insert(name.clone(), plan.clone())),
                None => drop(self.plans.remove(name)),
            }
        }
        degraded
    }

    /// Sends changes to the relay, or all plans over a new connection, and asks for its listeners. If the connection is
    /// lost meanwhile, another relay is found or started, and all plans are sent to it.
    fn update_relay(
        &mut self,
        relay: &RelayClient,
        settings: &UserspaceSettings,
        changed: PlanChanges,
    ) -> io::Result<Option<ListenerPorts>> {
        let connection = relay.ensure_connected()?;
        match self.update_over(connection, relay, settings, changed) {
            Err(_) if !relay.is_connected() => {
                let connection = relay.ensure_connected()?;
                // Over a new connection all plans are sent.
                self.update_over(connection, relay, settings, Vec::new())
            }
            other => other,
        }
    }

    fn update_over(
        &mut self,
        connection: u64,
        relay: &RelayClient,
        settings: &UserspaceSettings,
        changed: PlanChanges,
    ) -> io::Result<Option<ListenerPorts>> {
        relay.configure(settings)?;
        let services = if connection == self.synced_connection {
            changed
        } else {
            self.plans.iter().map(|(name, plan)| (name.clone(), Some(plan.clone()))).collect()
        };
        relay.change(self.family, services)?;
        self.synced_connection = connection;
        let routable = settings.addresses.iter().copied().filter(|ip| is_routable(*ip));
        relay.listeners(self.family, routable.collect(), self.previous)
    }

    /// The warning that there is no relay, with the cause; none if the previous sync has reported it.
    fn relay_warning(&self, error: &io::Error, superseded: bool) -> Option<String> {
        if self.relay_failed_at.is_some() && superseded == self.superseded {
            return None;
        }
        Some(match superseded {
            true => error.to_string(),
            false => format!("no relay: the kernel sends connections to endpoints itself: {error}"),
        })
    }

    /// Whether a sync is needed: to try again to reach the relay, or because the address of its listeners was removed
    /// from the node.
    fn needs_sync(&self) -> bool {
        let has_address = |ports: &ListenerPorts| std::net::UdpSocket::bind((ports.address, 0)).is_ok();
        let retry_due = self.relay_failed_at.is_some_and(|when| when.elapsed() >= RETRY_INTERVAL);
        retry_due || self.listeners.as_ref().is_some_and(|ports| !has_address(ports))
    }
}

/// Whether packets from any interface can be redirected to an address.
fn is_routable(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !is_link_local
}

/// The settings for the redirecting rules: without the settings of the relay, so that a change of those rewrites no
/// rule; with the mark of the relay's own connections, which the rules do not redirect. Without the mark, a connection
/// to an endpoint that has the address and port of a Service, such as an ingress controller in the host network, would
/// be redirected to the relay again.
fn settings_for_rules(settings: &Settings) -> Settings {
    Settings {
        bypass_mark: Some(settings.userspace.bypass_mark),
        userspace: UserspaceSettings::default(),
        ..settings.clone()
    }
}

impl Userspace {
    /// The mode over `rules`, a backend that no other caller may sync.
    pub fn new(rules: Box<dyn Backend>, relay: Arc<RelayClient>, now: Instant) -> Userspace {
        let families = rules.families().into_iter().map(FamilyState::new).collect();
        Userspace { rules, relay, families, next_check: now + CHECK_INTERVAL }
    }

    /// Points the rules at the real endpoints. Open TCP connections stay with the relay. UDP flows keep the endpoints
    /// that the relay chose for them; those that it no longer knows get one by the rules.
    fn hand_over_to_kernel(&mut self, settings: &Settings) -> Result<(), Error> {
        let settings = settings_for_rules(settings);
        let pointed = self.point_at_endpoints(&settings, |plan, listeners| match listeners {
            Some(ports) => redirect::to_endpoints_with_listeners(plan, ports),
            None => redirect::to_endpoints(plan),
        });
        if let Err(error) = self.relay.hand_over_udp() {
            tracing::debug!(%error, "the relay has handed over no UDP flows");
        }
        pointed.and(self.point_at_endpoints(&settings, |plan, _| redirect::to_endpoints(plan)))
    }

    fn point_at_endpoints(
        &mut self,
        settings: &Settings,
        render: impl Fn(&ServicePlan, Option<&ListenerPorts>) -> ServicePlan,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for state in &mut self.families {
            state.handed_over = true;
            if state.superseded {
                continue;
            }
            let plan = |plan| render(plan, state.listeners.as_ref());
            let all = state.plans.iter().map(|(name, of_service)| (name.clone(), Some(plan(of_service))));
            let all = all.collect();
            // A family that fails does not keep the other one at the relay.
            result = result.and(self.rules.sync(state.family, settings, all).map(drop));
        }
        result
    }
}

impl Backend for Userspace {
    fn families(&self) -> Vec<Family> {
        self.rules.families()
    }

    fn sync(&mut self, family: Family, settings: &Settings, changes: PlanChanges) -> Result<Report, Error> {
        let Some(state) = self.families.iter_mut().find(|s| s.family == family) else {
            return self.rules.sync(family, settings, changes);
        };
        let degraded = state.stage_changes(&changes);
        let names: Vec<ServiceName> = changes.iter().map(|(name, _)| name.clone()).collect();
        // The relay has a route before a rule points to it.
        let listeners = state.update_relay(&self.relay, &settings.userspace, changes);
        let superseded = listeners.as_ref().is_err_and(is_superseded);
        let warning = listeners.as_ref().err().and_then(|error| state.relay_warning(error, superseded));
        state.relay_failed_at = listeners.is_err().then(Instant::now);
        state.superseded = superseded;
        if superseded {
            state.unsynced.extend(names);
            return Ok(Report { degraded, warnings: warning.into_iter().collect(), ..Report::default() });
        }
        let listeners = listeners.unwrap_or_default();
        state.previous = listeners.or(state.previous);
        let moved = std::mem::replace(&mut state.listeners, listeners) != listeners;
        let unsynced = std::mem::take(&mut state.unsynced);
        let mut names: HashSet<ServiceName> = names.into_iter().chain(unsynced).collect();
        if moved {
            names.extend(state.plans.keys().cloned());
        }
        let for_rules = names
            .into_iter()
            .map(|name| {
                let plan = state.plans.get(&name).map(|plan| state.plan_for_rules(plan));
                (name, plan)
            })
            .collect();
        let mut report = self.rules.sync(family, &settings_for_rules(settings), for_rules)?;
        // Routes are removed after the rules. An error means that the connection to the relay is lost; the next check
        // detects that.
        _ = self.relay.commit_routes(family);
        report.degraded.extend(degraded);
        report.warnings.extend(warning);
        Ok(report)
    }

    fn mark_stale(&mut self) {
        self.rules.mark_stale();
    }

    fn verify(&mut self, family: Family) -> Result<Drift, Error> {
        self.rules.verify(family)
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        let rules = self.rules.trace(packet, host)?;
        let Some(state) = self.families.iter().find(|s| s.family == Family::of(packet.destination)) else {
            return Ok(rules);
        };
        let evaluator = Evaluator::new(state.plans.values(), &UserspaceSettings::default(), state.listeners);
        Ok(evaluator.follow(packet, rules))
    }

    fn locations(&self) -> Vec<Location> {
        let mut locations = self.rules.locations();
        locations.push(leftovers::location());
        locations
    }

    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        Some(self.relay.clone())
    }

    /// Points the rules at the real endpoints, so that the kernel handles new connections, and asks the relay to shut
    /// down, unless it serves node ports at loopback addresses. Open connections may finish within the drain time-out; if the agent is process 1 of a container, the relay
    /// ends with it, so they may finish within the stop time-out.
    fn stop(&mut self, settings: &Settings) {
        if self.relay.is_shared() {
            tracing::info!("the relay keeps running: another agent uses it");
            return;
        }
        if let Err(error) = self.hand_over_to_kernel(settings) {
            tracing::error!("the relay keeps running: the rules cannot be pointed at endpoints: {error}");
            return;
        }
        let is_process_1 = std::process::id() == 1;
        let has_node_ports = |state: &FamilyState| {
            state.plans.values().flat_map(|plan| &plan.ports).any(PortPlan::has_node_port)
        };
        let serves_localhost = settings.userspace.localhost_node_ports && !is_process_1;
        if serves_localhost && self.families.iter().any(has_node_ports) {
            tracing::info!("the relay keeps running: it serves node ports at loopback addresses");
            return;
        }
        let UserspaceSettings { stop_timeout, drain_timeout, .. } = settings.userspace;
        let limit = if is_process_1 { stop_timeout } else { drain_timeout };
        if let Err(error) = self.relay.shut_down(limit) {
            tracing::warn!("cannot ask the relay to shut down: {error}");
        } else if is_process_1 {
            tracing::info!(limit = ?stop_timeout, "waiting for open connections to finish");
            self.relay.wait(stop_timeout);
        }
    }

    fn set_wake(&mut self, wake: Wake) {
        self.rules.set_wake(wake);
    }

    fn set_audit_period(&mut self, period: Duration) {
        self.rules.set_audit_period(period);
    }

    fn sync_begins(&mut self, now: Instant) {
        self.rules.sync_begins(now);
    }

    fn sync_ended(&mut self, outcomes: &[Outcome], now: Instant) -> bool {
        self.rules.sync_ended(outcomes, now)
    }

    fn detect_drift(&mut self, now: Instant) -> Option<DriftSignal> {
        let signal = self.rules.detect_drift(now);
        if signal.is_some() || now < self.next_check {
            return signal;
        }
        self.next_check = now + CHECK_INTERVAL;
        let needs_sync = self.relay.is_reconnect_due() || self.families.iter().any(FamilyState::needs_sync);
        needs_sync.then_some(DriftSignal::Possible)
    }

    fn next_drift_check(&self) -> Option<Instant> {
        let next_of_rules = self.rules.next_drift_check();
        Some(next_of_rules.map_or(self.next_check, |next| next.min(self.next_check)))
    }

    fn restart_drift_detection(&mut self) {
        self.rules.restart_drift_detection();
    }

    fn is_listening(&self) -> bool {
        self.rules.is_listening()
    }
}

/// The userspace mode.
pub const MODE: &dyn Mode = &UserspaceMode;

struct UserspaceMode;

impl Mode for UserspaceMode {
    fn name(&self) -> &'static str {
        "userspace"
    }

    fn section(&self) -> Section {
        Section::Userspace
    }

    fn features(&self) -> Features {
        Features {
            proxy_protocol: true,
            node_addresses: true,
            localhost_node_ports: true,
            ..Features::default()
        }
    }

    fn settings(&self, all: Settings) -> Settings {
        Settings { ipvs: IpvsSettings::default(), drop_invalid: false, ..all }
    }

    /// How long the agent may wait for open connections before it ends.
    fn stop_timeout(&self, settings: &Settings) -> Option<Duration> {
        Some(settings.userspace.stop_timeout)
    }

    /// Nothing to check here: [`Mode::open`] fails if no mode can redirect connections on this host.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    fn open(&self, options: &OpenOptions<'_>) -> Result<Box<dyn Backend>, Error> {
        let rules = redirecting_mode(options.modes)?;
        let settings = rules.settings(options.settings.clone());
        let rules = rules.open(&OpenOptions {
            settings: &settings,
            relaunch: options.relaunch.clone(),
            ..*options
        })?;
        let relaunch = options.relaunch.clone();
        let relay = Arc::new(RelayClient::new(move || relaunch("relay")));
        Ok(Box::new(Userspace::new(rules, relay, Instant::now())))
    }

    fn locations(&self) -> Vec<Location> {
        vec![leftovers::location()]
    }

    fn clear(&self, _: &Location, how: Clear, _: &Settings) -> Result<Vec<String>, Error> {
        leftovers::clear(how)
    }
}

/// The first mode that can redirect connections on this host.
fn redirecting_mode<'m>(modes: &[&'m dyn Mode]) -> Result<&'m dyn Mode, Error> {
    let mut last_error = None;
    for mode in modes.iter().filter(|mode| mode.features().redirects) {
        match mode.check() {
            Ok(()) => {}
            // A missing privilege is reported when the mode is opened.
            Err(error) if error.is_permission() => {}
            Err(error) => {
                last_error = Some(error);
                continue;
            }
        }
        if let Some(error) = last_error {
            tracing::info!("connections are redirected to the relay by {}: {error}", mode.name());
        }
        return Ok(*mode);
    }
    Err(last_error.unwrap_or_else(|| Error::Unsupported {
        feature: "a mode whose rules can redirect connections".to_owned(),
        hint: "the userspace mode needs nftables or iptables".to_owned(),
    }))
}
