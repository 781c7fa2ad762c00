//! kube-proxy's feature gates: the names that its releases accept, and the gates that have an effect here.

use super::domain::{Config, ModeName};
use portway_config::{Checks, Typed, Value, nearest_name};
use std::sync::LazyLock;

/// Without it `externalIPs` of Services are ignored.
pub const ALLOW_EXTERNAL_IPS: &str = "AllowServiceExternalIPs";
/// Without it the ipvs mode cannot be used.
pub(super) const IPVS: &str = "KubeProxyIPVS";
/// Without it node ports are not served on loopback addresses, except in mode iptables.
pub(super) const LOCALHOST_NODE_PORTS: &str = "KubeProxyNFTablesLocalhostNodePorts";

/// The gates that have an effect. All are on by default.
pub(super) const EFFECTIVE: [&str; 3] = [ALLOW_EXTERNAL_IPS, IPVS, LOCALHOST_NODE_PORTS];

/// The gates of Kubernetes 1.36 and 1.37, and those that stand for several gates.
static KNOWN: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| include_str!("feature_gates.txt").lines().collect());

/// Rejects gates that kube-proxy 1.36 and 1.37 do not have, and a mode that a gate forbids.
pub(super) fn check(typed: &Typed, config: &Config, checks: &mut Checks) {
    for given in typed.get("featureGates").into_iter().flat_map(|given| given.items()) {
        let Value::Named(name, _) = &given.value else { continue };
        if KNOWN.binary_search(&name.as_str()).is_err() {
            let nearest = nearest_name(name, &KNOWN).map(|name| format!(", did you mean {name}?"));
            checks.invalid_item(
                given,
                "",
                format!("is an unknown feature gate{}", nearest.unwrap_or_default()),
            );
        }
    }
    if config.mode == ModeName::parse("ipvs").unwrap_or_default()
        && !config.gate(IPVS, true)
        && let Some((_, given)) = typed.text("mode")
    {
        checks.invalid(given, format!("is forbidden by the feature gate {IPVS}=false"));
    }
}
