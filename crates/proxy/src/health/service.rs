//! `healthCheckNodePort`: a load balancer asks whether this node has endpoints of a Service.
//!
//! [`ServicePorts`] is given the whole set of checks to answer and opens and closes ports to match it. Every path
//! gets the same answer: 200 if there are local endpoints and the proxy keeps up, else 503. A port that cannot be had
//! is an error that names the Service, for the log and an Event, and is tried again with growing pauses; on the
//! other addresses of the node it is served meanwhile.

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
/// A node may have a thousand of these ports, so each gets few connections; load balancers ask one at a time.
const LIMITS: Limits =
    Limits { headers: Duration::from_secs(10), lifetime: Duration::from_secs(3600), connections: 32 };

/// A Service's health check port cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("health check port {port} of Service {service} cannot be opened: {why}{}", next_try(retry_in))]
pub struct PortUnavailable {
    /// The Service.
    pub service: ServiceName,
    /// Its `healthCheckNodePort`.
    pub port: u16,
    /// Why.
    #[source]
    pub why: WhyUnavailable,
    /// When it is tried again; `None` if only a change of the Services helps.
    pub retry_in: Option<Duration>,
}

fn next_try(retry_in: &Option<Duration>) -> String {
    retry_in.map(|pause| format!("; next try in {pause:?}")).unwrap_or_default()
}

/// Why a health check port cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum WhyUnavailable {
    /// Another Service has the same number.
    #[error("Service {0} has it")]
    Service(ServiceName),
    /// The kernel does not give it.
    #[error("{address}: {source}")]
    Socket {
        /// Where it was to listen.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The health check ports of this node.
#[derive(Debug)]
pub struct ServicePorts {
    health: Health,
    /// Where the servers run.
    runtime: Handle,
    addresses: Vec<IpAddr>,
    wanted: BTreeMap<u16, Wanted>,
    open: BTreeMap<u16, Open>,
    refused: BTreeMap<u16, Refusal>,
    /// Services whose port another one has, so that it is said once and not on every sync.
    contested: BTreeSet<ServiceName>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    service: ServiceName,
    local_endpoints: usize,
}

#[derive(Debug)]
struct Open {
    answer: Arc<Mutex<Wanted>>,
    servers: Vec<Server>,
    /// On every address.
    complete: bool,
}

#[derive(Debug)]
struct Refusal {
    service: ServiceName,
    pause: Duration,
    retry_at: Instant,
}

impl Open {
    fn new(wanted: Wanted) -> Self {
        Open { answer: Arc::new(Mutex::new(wanted)), servers: Vec::new(), complete: false }
    }
}

impl ServicePorts {
    /// No ports yet; their servers will run in `runtime`.
    pub fn new(health: Health, runtime: Handle) -> Self {
        let (addresses, wanted, open, refused, contested) = Default::default();
        ServicePorts { health, runtime, addresses, wanted, open, refused, contested }
    }

    /// Makes the open ports those of `checks`, on `addresses` (see [`listen_addresses`]).
    pub async fn sync(
        &mut self,
        now: Instant,
        addresses: &[IpAddr],
        checks: &BTreeMap<ServiceName, HealthCheck>,
    ) -> Vec<PortUnavailable> {
        if self.addresses != addresses {
            self.refused.clear();
            self.addresses = addresses.to_vec();
            self.leave_addresses().await;
        }
        let mut errors = self.want(checks);
        let gone: Vec<u16> =
            self.open.keys().copied().filter(|port| !self.wanted.contains_key(port)).collect();
        for port in gone {
            self.close_port(port).await;
        }
        for (port, open) in &self.open {
            if let Some(wanted) = self.wanted.get(port) {
                *open.answer.lock().unwrap_or_else(PoisonError::into_inner) = wanted.clone();
            }
        }
        errors.extend(self.retry(now));
        errors
    }

    /// When a port that could not be had is next worth a try.
    pub fn next_retry(&self) -> Option<Instant> {
        self.refused.values().map(|refusal| refusal.retry_at).min()
    }

    /// Tries the ports that could not be had and whose pause is over.
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
                Err(why) => errors.push(self.refuse(now, port, wanted.service, why)),
            }
        }
        errors
    }

    /// Closes every port; they are free when this returns.
    pub async fn close(&mut self) {
        let ports: Vec<u16> = self.open.keys().copied().collect();
        for port in ports {
            self.close_port(port).await;
        }
    }

    /// Sorts the checks by port. Of two Services with the same port the first by name has it.
    fn want(&mut self, checks: &BTreeMap<ServiceName, HealthCheck>) -> Vec<PortUnavailable> {
        let mut errors = Vec::new();
        self.wanted.clear();
        let known = std::mem::take(&mut self.contested);
        for (service, check) in checks {
            let service = service.clone();
            let Some(first) = self.wanted.get(&check.port) else {
                self.wanted.insert(check.port, Wanted { service, local_endpoints: check.local_endpoints });
                continue;
            };
            let why = WhyUnavailable::Service(first.service.clone());
            self.contested.insert(service.clone());
            if !known.contains(&service) {
                errors.push(PortUnavailable { service, port: check.port, why, retry_in: None });
            }
        }
        let wanted = &self.wanted;
        self.refused.retain(|port, refusal| wanted.get(port).is_some_and(|w| w.service == refusal.service));
        errors
    }

    /// Opens a port on the addresses where it is not open yet. The first one that refuses is told.
    fn open_port(&mut self, port: u16, wanted: &Wanted) -> Result<(), WhyUnavailable> {
        let open = self.open.entry(port).or_insert_with(|| Open::new(wanted.clone()));
        let router = router(Asked { answer: open.answer.clone(), health: self.health.clone() });
        let mut outcome = Ok(());
        let _context = self.runtime.enter();
        for ip in &self.addresses {
            let address = SocketAddr::new(*ip, port);
            if open.servers.iter().any(|server| server.address() == address) {
                continue;
            }
            let started = listen(address, DualStack::No)
                .and_then(|listener| Server::start(listener, router.clone(), LIMITS));
            match started {
                Ok(server) => open.servers.push(server),
                Err(error) if no_ipv6_here(*ip, &error) => {}
                Err(source) => outcome = outcome.and(Err(WhyUnavailable::Socket { address, source })),
            }
        }
        open.complete = outcome.is_ok();
        outcome
    }

    /// Closes servers on addresses that are no longer to be listened on.
    async fn leave_addresses(&mut self) {
        for open in self.open.values_mut() {
            open.complete = false;
            let left = |server: &mut Server| !self.addresses.contains(&server.address().ip());
            for server in open.servers.extract_if(.., left) {
                server.close().await;
            }
        }
    }

    fn refuse(
        &mut self,
        now: Instant,
        port: u16,
        service: ServiceName,
        why: WhyUnavailable,
    ) -> PortUnavailable {
        let pause = self.refused.get(&port).map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
        self.refused.insert(port, Refusal { service: service.clone(), pause, retry_at: now + pause });
        PortUnavailable { service, port, why, retry_in: Some(pause) }
    }

    async fn close_port(&mut self, port: u16) {
        for server in self.open.remove(&port).into_iter().flat_map(|open| open.servers) {
            tracing::debug!(address = %server.address(), "health check port closed");
            server.close().await;
        }
    }
}

/// The addresses that health check ports listen on: those that node ports answer on.
///
/// `primary` are the Node's own addresses, `local` all that its interfaces have. If none matches, all are listened
/// on rather than none, as upstream does: a load balancer takes the node out if its probe is refused.
pub fn listen_addresses(node_ports: &NodePortAddresses, primary: &[IpAddr], local: &[IpAddr]) -> Vec<IpAddr> {
    let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let mut addresses: Vec<IpAddr> = Vec::new();
    for family in Family::ALL {
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        match node_ports.of_family(family) {
            FamilyAddresses::All => addresses.extend(everywhere.iter().filter(of_family)),
            // One per family: the first is the primary one.
            FamilyAddresses::Primary => addresses.extend(primary.iter().find(of_family)),
            FamilyAddresses::Cidrs(cidrs) => {
                let covered = |ip: &&IpAddr| cidrs.iter().any(|cidr| cidr.contains(*ip));
                addresses.extend(local.iter().filter(of_family).filter(covered));
            }
        }
    }
    if addresses.is_empty() {
        return everywhere.to_vec();
    }
    addresses.sort();
    addresses.dedup();
    addresses
}

/// A kernel without IPv6, or with IPv6 off, cannot listen on its wildcard; no probe can come there either.
fn no_ipv6_here(ip: IpAddr, error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

#[derive(Clone)]
struct Asked {
    answer: Arc<Mutex<Wanted>>,
    health: Health,
}

fn router(asked: Asked) -> Router {
    Router::new().fallback(answer).with_state(asked)
}

async fn answer(State(asked): State<Asked>) -> impl IntoResponse {
    let Wanted { service, local_endpoints } =
        asked.answer.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let healthy = asked.health.lock().is_healthy(Timestamp::now());
    let status =
        if healthy && local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (HeaderName::from_static("x-load-balancing-endpoint-weight"), local_endpoints.to_string()),
    ];
    let service = AskedFor { namespace: service.namespace(), name: service.name() };
    let report = Report { service, local_endpoints, service_proxy_healthy: healthy };
    // Strings, a number and a boolean always serialise.
    (status, headers, serde_json::to_string(&report).unwrap_or_default())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    service: AskedFor<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct AskedFor<'a> {
    namespace: &'a str,
    name: &'a str,
}

#[cfg(test)]
mod tests;
