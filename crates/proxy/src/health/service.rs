//! `healthCheckNodePort`: tells load balancers whether this node has endpoints of a Service.
//!
//! [`ServicePorts::sync`] gets the health checks of all Services, and opens and closes ports to match them. Every path
//! gets the same answer: 200 if there are local endpoints and the proxy is healthy, else 503. Each family that a Service
//! has counts by itself, and a port is open at addresses of these families only. A port that cannot be
//! opened is an error that names the Service, for the log and an Event, and is retried with growing pauses; the port
//! is served on the other addresses of the node meanwhile.

use crate::config::{FamilyAddresses, NodePortAddresses};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use portway_model::{Family, HealthCheck, ServiceName};
use portway_serve::{DualStack, Health, Limits, Server, Timestamp, listen};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A node may have a thousand of these ports, so each allows few connections; a load balancer needs one at a time.
const LIMITS: Limits =
    Limits { headers: Duration::from_secs(10), lifetime: Duration::from_secs(3600), connections: 32 };

/// A Service's health check port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("health check port {port} of Service {service} cannot be opened: {reason}{}", next_try(retry_in))]
pub struct PortUnavailable {
    /// The Service.
    pub service: ServiceName,
    /// Its `healthCheckNodePort`.
    pub port: u16,
    /// The reason.
    #[source]
    pub reason: UnavailableReason,
    /// The time until the next try; `None` if only a change of the Services helps.
    pub retry_in: Option<Duration>,
}

fn next_try(retry_in: &Option<Duration>) -> String {
    retry_in.map(|pause| format!("; next try in {pause:?}")).unwrap_or_default()
}

/// The reason that a health check port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum UnavailableReason {
    /// Another Service has the same port.
    #[error("Service {0} has the same port")]
    Service(ServiceName),
    /// The kernel refused the listener.
    #[error("{address}: {source}")]
    Socket {
        /// The address of the listener.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The health check ports of this node.
#[derive(Debug)]
pub struct ServicePorts {
    health: Health,
    /// The runtime of the servers.
    runtime: Handle,
    addresses: Vec<IpAddr>,
    wanted: BTreeMap<u16, Wanted>,
    open: BTreeMap<u16, Open>,
    refused: BTreeMap<u16, Refusal>,
    /// Services whose port another Service has, so that it is reported once and not on every sync.
    contested: BTreeSet<ServiceName>,
}

/// The health check that a port answers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    service: ServiceName,
    local_endpoints: BTreeMap<Family, usize>,
}

impl Wanted {
    fn is_wanted_at(&self, ip: IpAddr) -> bool {
        self.local_endpoints.contains_key(&Family::of(ip))
    }
}

/// An open port.
#[derive(Debug)]
struct Open {
    check: Arc<Mutex<Wanted>>,
    servers: Vec<Server>,
    /// The port is open on every address.
    complete: bool,
}

/// A port that could not be opened on every address.
#[derive(Debug)]
struct Refusal {
    service: ServiceName,
    pause: Duration,
    retry_at: Instant,
}

impl Open {
    fn new(wanted: Wanted) -> Self {
        Open { check: Arc::new(Mutex::new(wanted)), servers: Vec::new(), complete: false }
    }
}

impl ServicePorts {
    /// No ports are open yet; their servers will run in `runtime`.
    pub fn new(health: Health, runtime: Handle) -> Self {
        let (addresses, wanted, open, refused, contested) = Default::default();
        ServicePorts { health, runtime, addresses, wanted, open, refused, contested }
    }

    /// Opens the ports of `checks` on `addresses` (see [`listen_addresses`]), and closes all other ports.
    pub async fn sync(
        &mut self,
        now: Instant,
        addresses: &[IpAddr],
        checks: &BTreeMap<ServiceName, HealthCheck>,
    ) -> Vec<PortUnavailable> {
        if self.addresses != addresses {
            self.refused.clear();
            self.addresses = addresses.to_vec();
            self.close_old_addresses().await;
        }
        let mut errors = self.set_wanted(checks);
        let unwanted: Vec<u16> =
            self.open.keys().copied().filter(|port| !self.wanted.contains_key(port)).collect();
        for port in unwanted {
            self.close_port(port).await;
        }
        for (port, open) in &mut self.open {
            let Some(wanted) = self.wanted.get(port) else { continue };
            let before = {
                let mut check = open.check.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *check, wanted.clone())
            };
            if before.local_endpoints.keys().ne(wanted.local_endpoints.keys()) {
                open.complete = false;
                for server in open.servers.extract_if(.., |s| !wanted.is_wanted_at(s.address().ip())) {
                    server.close().await;
                }
            }
        }
        errors.extend(self.retry(now));
        errors
    }

    /// The time of the next retry of a port that could not be opened.
    pub fn next_retry(&self) -> Option<Instant> {
        self.refused.values().map(|refusal| refusal.retry_at).min()
    }

    /// Opens the wanted ports that are not open on every address and whose pause is over.
    pub fn retry(&mut self, now: Instant) -> Vec<PortUnavailable> {
        let complete = |port: &u16| self.open.get(port).is_some_and(|open| open.complete);
        let missing = self.wanted.iter().filter(|(port, _)| !complete(port));
        let missing: Vec<(u16, Wanted)> = missing.map(|(port, wanted)| (*port, wanted.clone())).collect();
        let mut errors = Vec::new();
        for (port, wanted) in missing {
            if self.refused.get(&port).is_some_and(|refusal| now < refusal.retry_at) {
                continue;
            }
            match self.open_port(port, &wanted) {
                Ok(()) => drop(self.refused.remove(&port)),
                Err(reason) => errors.push(self.refuse(now, port, wanted.service, reason)),
            }
        }
        errors
    }

    /// Closes every port. The ports are free when this returns.
    pub async fn close(&mut self) {
        let ports: Vec<u16> = self.open.keys().copied().collect();
        for port in ports {
            self.close_port(port).await;
        }
    }

    /// Sorts the checks by port. Of two Services with the same port, the first by name gets it.
    fn set_wanted(&mut self, checks: &BTreeMap<ServiceName, HealthCheck>) -> Vec<PortUnavailable> {
        let mut errors = Vec::new();
        self.wanted.clear();
        let reported = std::mem::take(&mut self.contested);
        for (service, check) in checks {
            let service = service.clone();
            let Some(first) = self.wanted.get(&check.port) else {
                let local_endpoints = check.local_endpoints.clone();
                self.wanted.insert(check.port, Wanted { service, local_endpoints });
                continue;
            };
            let reason = UnavailableReason::Service(first.service.clone());
            self.contested.insert(service.clone());
            if !reported.contains(&service) {
                errors.push(PortUnavailable { service, port: check.port, reason, retry_in: None });
            }
        }
        let wanted = &self.wanted;
        self.refused.retain(|port, refusal| wanted.get(port).is_some_and(|w| w.service == refusal.service));
        errors
    }

    /// Opens a port on the addresses where it is not open yet. Returns the first error.
    fn open_port(&mut self, port: u16, wanted: &Wanted) -> Result<(), UnavailableReason> {
        let open = self.open.entry(port).or_insert_with(|| Open::new(wanted.clone()));
        let router =
            |family| router(AnswerState { check: open.check.clone(), family, health: self.health.clone() });
        let mut outcome = Ok(());
        let _context = self.runtime.enter();
        for ip in self.addresses.iter().filter(|ip| wanted.is_wanted_at(**ip)) {
            let address = SocketAddr::new(*ip, port);
            if open.servers.iter().any(|server| server.address() == address) {
                continue;
            }
            let started = listen(address, DualStack::No)
                .and_then(|listener| Server::start_shared(listener, router(Family::of(*ip)), LIMITS));
            match started {
                Ok(server) => open.servers.push(server),
                Err(error) if ipv6_is_unavailable(*ip, &error) => {}
                Err(source) => outcome = outcome.and(Err(UnavailableReason::Socket { address, source })),
            }
        }
        open.complete = outcome.is_ok();
        outcome
    }

    /// Closes the servers on addresses that `addresses` does not have any more.
    async fn close_old_addresses(&mut self) {
        for open in self.open.values_mut() {
            open.complete = false;
            let old = |server: &mut Server| !self.addresses.contains(&server.address().ip());
            for server in open.servers.extract_if(.., old) {
                server.close().await;
            }
        }
    }

    /// Records that a port could not be opened, and when it is retried.
    fn refuse(
        &mut self,
        now: Instant,
        port: u16,
        service: ServiceName,
        reason: UnavailableReason,
    ) -> PortUnavailable {
        let pause = self.refused.get(&port).map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
        self.refused.insert(port, Refusal { service: service.clone(), pause, retry_at: now + pause });
        PortUnavailable { service, port, reason, retry_in: Some(pause) }
    }

    async fn close_port(&mut self, port: u16) {
        for server in self.open.remove(&port).into_iter().flat_map(|open| open.servers) {
            tracing::debug!(address = %server.address(), "health check port closed");
            server.close().await;
        }
    }
}

/// The addresses that health check ports listen on: the same as those of node ports.
///
/// `primary` are the addresses of the Node object, `local` those of all interfaces. If none matches, the ports listen
/// on all addresses, as in upstream: a load balancer stops using a node that refuses its probe.
pub fn listen_addresses(node_ports: &NodePortAddresses, primary: &[IpAddr], local: &[IpAddr]) -> Vec<IpAddr> {
    let unspecified: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let mut addresses: Vec<IpAddr> = Vec::new();
    for family in Family::ALL {
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        match node_ports.of_family(family) {
            FamilyAddresses::All => addresses.extend(unspecified.iter().filter(of_family)),
            FamilyAddresses::Chosen { primary: with_primary, cidrs } => {
                let covered = |ip: &&IpAddr| cidrs.iter().any(|cidr| cidr.contains(*ip));
                addresses.extend(local.iter().filter(of_family).filter(covered));
                // One address per family, the first.
                addresses.extend(primary.iter().filter(|_| with_primary).find(of_family));
            }
        }
    }
    if addresses.is_empty() {
        return unspecified.to_vec();
    }
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Whether listening on the IPv6 wildcard address failed because the kernel has no IPv6, or has it disabled. No probe
/// can arrive over IPv6 then, so that is no error.
fn ipv6_is_unavailable(ip: IpAddr, error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// The state that an answer is made from.
#[derive(Clone)]
struct AnswerState {
    check: Arc<Mutex<Wanted>>,
    /// The family of the address that was probed.
    family: Family,
    health: Health,
}

fn router(state: AnswerState) -> Router {
    Router::new().fallback(answer).with_state(state)
}

async fn answer(State(state): State<AnswerState>) -> impl IntoResponse {
    let Wanted { service, local_endpoints } =
        state.check.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let local_endpoints = local_endpoints.get(&state.family).copied().unwrap_or(0);
    let healthy = state.health.lock().is_healthy(Timestamp::now());
    let status =
        if healthy && local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (HeaderName::from_static("x-load-balancing-endpoint-weight"), local_endpoints.to_string()),
    ];
    let service = ReportedService { namespace: service.namespace(), name: service.name() };
    let report = Report { service, local_endpoints, service_proxy_healthy: healthy };
    // Strings, a number and a boolean always serialize.
    (status, headers, serde_json::to_string(&report).unwrap_or_default())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    service: ReportedService<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ReportedService<'a> {
    namespace: &'a str,
    name: &'a str,
}

#[cfg(test)]
mod tests;
