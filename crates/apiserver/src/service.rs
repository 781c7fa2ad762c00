//! Services: what a new or changed one becomes before it is stored, or why it is refused.
//!
//! Pure. [`decide`] sets defaults and IP families, takes addresses and ports from the [`Pools`], removes what the new type
//! has no use for, and checks the result, in the order in which kube-apiserver does.

mod allocation;
mod defaults;
mod families;
mod pools;
mod update;
mod validate;

pub use allocation::{Pools, Shortage};
pub use families::Families;
pub use pools::{AddressRange, FreePools};

use crate::validation::names::dns_label;
use crate::validation::{Causes, Fields, metadata};
use serde_json::{Value, json};

/// The cluster IP of a headless Service.
const HEADLESS: &str = "None";

/// Why a Service is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Fields are not valid.
    Invalid(Causes),
    /// The server cannot do what is needed.
    Internal(String),
}

/// Decides what is stored for a Service that a client sent, which has its name and namespace. `old` is the Service before an update.
pub fn decide(
    service: &mut Value,
    old: Option<&Value>,
    cluster: &Families,
    pools: &mut dyn Pools,
) -> Result<(), Refusal> {
    defaults::set(service);
    match old {
        // The status is not the client's to set.
        None => service["status"] = json!({"loadBalancer": {}}),
        Some(old) => {
            metadata::keep_server_fields(service, old);
            service["status"] = old["status"].clone();
            update::keep_allocated(service, old);
        }
    }
    if old.is_none() {
        fill_cluster_ips(service);
    }
    families::set(service, old, cluster).map_err(Refusal::Invalid)?;
    allocation::allocate(service, old, pools)?;
    let mut causes = match old {
        None => metadata::check(service, true, dns_label),
        Some(old) => {
            update::drop_unused(service, old);
            let mut causes = metadata::check_update(service, old);
            causes.extend(update::check(service, old));
            causes
        }
    };
    causes.extend(validate::check(service, old));
    if causes.is_empty() { Ok(()) } else { Err(Refusal::Invalid(causes)) }
}

/// Clients that know only `clusterIP` set only that one.
fn fill_cluster_ips(service: &mut Value) {
    let spec = Fields(service).get("spec");
    if !spec.text("clusterIP").is_empty() && spec.list("clusterIPs").is_empty() {
        service["spec"]["clusterIPs"] = json!([spec.text("clusterIP")]);
    }
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

/// Whether ports of a Service get node ports without asking for one.
fn chooses_node_ports(spec: Fields<'_>) -> bool {
    spec.text("type") == "NodePort"
        || spec.text("type") == "LoadBalancer" && spec.get("allocateLoadBalancerNodePorts").0 == &json!(true)
}

#[cfg(test)]
mod tests;
