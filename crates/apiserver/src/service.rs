//! Services: defaults, IP families, and what is wrong with one.
//!
//! Pure: addresses and ports are allocated by the caller, between [`prepare`] and [`check`].

mod defaults;
mod families;
mod validate;

pub use families::Families;

use crate::validation::{Causes, Fields};
use serde_json::Value;

/// The cluster IP of a headless Service.
const HEADLESS: &str = "None";

/// Sets the defaults of a new Service, and the families in which it needs cluster IPs.
pub fn prepare(service: &mut Value, cluster: &Families) -> Result<(), Causes> {
    defaults::set(service);
    let spec = &mut service["spec"];
    let ip = spec["clusterIP"].as_str().filter(|ip| !ip.is_empty()).map(str::to_owned);
    // Clients that know only one of the two fields set that one.
    if let Some(ip) = ip.filter(|_| spec["clusterIPs"].as_array().is_none_or(Vec::is_empty)) {
        spec["clusterIPs"] = Value::from(vec![ip]);
    }
    families::set(service, cluster)
}

/// What is wrong with a Service that has its addresses and ports. `old` is the Service before an update.
pub fn check(service: &Value, old: Option<&Value>) -> Causes {
    validate::check(service, old)
}

fn is_headless(spec: Fields<'_>) -> bool {
    spec.texts("clusterIPs") == [HEADLESS]
}

/// Whether a Service has addresses outside of the cluster.
fn is_externally_accessible(kind: &str, spec: Fields<'_>) -> bool {
    matches!(kind, "LoadBalancer" | "NodePort") || kind == "ClusterIP" && !spec.list("externalIPs").is_empty()
}

/// Whether a Service has a port for health checks.
fn needs_health_check(spec: Fields<'_>) -> bool {
    spec.text("type") == "LoadBalancer" && spec.text("externalTrafficPolicy") == "Local"
}

#[cfg(test)]
mod tests;
