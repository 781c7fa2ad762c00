//! Values of fields of a Service that are not set.

use crate::validation::Fields;
use serde_json::{Value, json};

/// Seconds after which a client may be served by another endpoint.
const AFFINITY_SECONDS: i64 = 10_800;

/// Sets the values that do not depend on the cluster.
pub(super) fn set(service: &mut Value) {
    let fields = Fields(service).get("spec");
    let affinity =
        if fields.text("sessionAffinity").is_empty() { "None" } else { fields.text("sessionAffinity") };
    let kind = if fields.text("type").is_empty() { "ClusterIP" } else { fields.text("type") };
    let (affinity, kind) = (affinity.to_owned(), kind.to_owned());
    let has_timeout = fields.get("sessionAffinityConfig").get("clientIP").has("timeoutSeconds");
    let has_internal_policy = fields.has("internalTrafficPolicy");
    let is_external = super::is_externally_accessible(&kind, fields);
    let has_external_policy = !fields.text("externalTrafficPolicy").is_empty();
    let chooses_node_ports = fields.has("allocateLoadBalancerNodePorts");
    let spec = &mut service["spec"];
    match affinity.as_str() {
        "None" => _ = spec.as_object_mut().map(|spec| spec.remove("sessionAffinityConfig")),
        "ClientIP" if !has_timeout => {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
        }
        _ => {}
    }
    spec["sessionAffinity"] = affinity.into();
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        if Fields(port).text("protocol").is_empty() {
            port["protocol"] = "TCP".into();
        }
        if port["targetPort"].is_null() || port["targetPort"] == 0 || port["targetPort"] == "" {
            port["targetPort"] = Fields(port).number("port").into();
        }
    }
    if is_external && !has_external_policy {
        spec["externalTrafficPolicy"] = "Cluster".into();
    }
    if !has_internal_policy && matches!(&*kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        spec["internalTrafficPolicy"] = "Cluster".into();
    }
    if kind == "ExternalName" {
        // No traffic of it passes the proxies.
        _ = spec.as_object_mut().map(|spec| spec.remove("internalTrafficPolicy"));
    }
    if kind == "LoadBalancer" {
        if !chooses_node_ports {
            spec["allocateLoadBalancerNodePorts"] = true.into();
        }
        for ingress in service["status"]["loadBalancer"]["ingress"].as_array_mut().into_iter().flatten() {
            if !Fields(ingress).text("ip").is_empty() && ingress["ipMode"].is_null() {
                ingress["ipMode"] = "VIP".into();
            }
        }
    }
    service["spec"]["type"] = kind.into();
}
