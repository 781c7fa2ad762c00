//! Logs each changed Service at verbosity 2: the frontends and endpoints that were added and removed.

use portway_model::{ServiceChange, ServiceName, ServicePlan};
use portway_serve::logging::CHANGES;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// The verbosity from which changes are logged.
const VERBOSITY: u32 = 2;

/// The frontends and endpoints of all Services, as last logged. Empty at a lower verbosity, where it would cost memory.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    known: HashMap<ServiceName, BTreeSet<String>>,
}

impl ChangeLog {
    /// Logs the changes of Services.
    pub(crate) fn log(&mut self, verbosity: u32, changes: &[ServiceChange]) {
        if verbosity < VERBOSITY {
            self.known = HashMap::new();
            return;
        }
        for change in changes {
            let now: BTreeSet<String> = change.plans.iter().flatten().flat_map(describe).collect();
            let before = match now.is_empty() {
                true => self.known.remove(&change.name),
                false => self.known.insert(change.name.clone(), now.clone()),
            };
            let before = before.unwrap_or_default();
            let list = |set: Vec<&String>| set.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let added = list(now.difference(&before).collect());
            let removed = list(before.difference(&now).collect());
            if !added.is_empty() || !removed.is_empty() {
                tracing::info!(target: CHANGES, service = %change.name, added, removed, "Service changed");
            }
        }
    }
}

/// The names of changed Services; of many, the first ones and a number.
pub(crate) struct Names<'a>(pub(crate) &'a [ServiceChange]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        for (i, change) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{}", if i > 0 { ", " } else { "" }, change.name)?;
        }
        if self.0.len() > SHOWN { write!(f, " and {} more", self.0.len() - SHOWN) } else { Ok(()) }
    }
}

/// The numbers of Services and endpoints that are programmed.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Services with a plan in one of the families.
    pub(crate) services: usize,
    /// Endpoints of their ports.
    pub(crate) endpoints: usize,
    by_service: HashMap<ServiceName, usize>,
}

impl Totals {
    /// Applies changed plans.
    pub(crate) fn update(&mut self, changes: &[ServiceChange]) {
        for change in changes {
            let plans = change.plans.iter().flatten();
            let endpoints: usize = plans.flat_map(|plan| &plan.ports).map(|port| port.cluster.len()).sum();
            let before = match change.plans.iter().any(Option::is_some) {
                true => self.by_service.insert(change.name.clone(), endpoints),
                false => self.by_service.remove(&change.name),
            };
            self.endpoints = (self.endpoints + endpoints).saturating_sub(before.unwrap_or_default());
        }
        self.services = self.by_service.len();
    }
}

/// The frontends and endpoints of a plan, by port.
fn describe(plan: &ServicePlan) -> Vec<String> {
    let mut items = Vec::new();
    for port in &plan.ports {
        for frontend in &port.frontends {
            items.push(match frontend.address {
                Some(ip) => format!("{} {}", port.protocol, std::net::SocketAddr::new(ip, frontend.port)),
                None => format!("{} node port {}", port.protocol, frontend.port),
            });
        }
        let endpoints = port.cluster.iter().chain(&port.local);
        items.extend(endpoints.map(|target| format!("endpoint {} {target}", port.protocol)));
    }
    items
}
