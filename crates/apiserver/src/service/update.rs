//! An update of a Service: what a client left out stays, and what the new type has no use for goes.
//!
//! Both only where the client cannot have meant anything else: a field that it changed as well is checked, and not
//! corrected.

use super::{HEADLESS, chooses_node_ports, is_externally_accessible, needs_health_check};
use crate::validation::{Causes, Fields};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

fn has_cluster_ip(spec: Fields<'_>) -> bool {
    spec.text("type") != "ExternalName"
}

fn has_node_ports(spec: Fields<'_>) -> bool {
    spec.text("type") == "NodePort"
        || spec.text("type") == "LoadBalancer"
            && (!spec.has("allocateLoadBalancerNodePorts") || chooses_node_ports(spec))
}

fn remove(service: &mut Value, field: &str) {
    _ = service["spec"].as_object_mut().map(|spec| spec.remove(field));
}

/// Keeps the addresses and ports that a client left out.
pub(super) fn keep_allocated(service: &mut Value, old: &Value) {
    let before = Fields(old).get("spec");
    if has_cluster_ip(before) && has_cluster_ip(Fields(service).get("spec")) {
        if Fields(service).get("spec").text("clusterIP").is_empty() {
            service["spec"]["clusterIP"] = before.text("clusterIP").into();
        }
        if Fields(service).get("spec").list("clusterIPs").is_empty() && !before.list("clusterIPs").is_empty()
        {
            service["spec"]["clusterIPs"] = before.get("clusterIPs").0.clone();
        }
    }
    if has_node_ports(before) && has_node_ports(Fields(service).get("spec")) {
        keep_node_ports(service, before);
    }
    let checks = |spec: Fields<'_>| needs_health_check(spec);
    let after = Fields(service).get("spec");
    if checks(before) && checks(after) && after.number("healthCheckNodePort") == 0 {
        service["spec"]["healthCheckNodePort"] = before.get("healthCheckNodePort").0.clone();
    }
    sync_cluster_ips(service, before);
}

/// A port keeps the node port of the port of its name, unless another port has it now.
fn keep_node_ports(service: &mut Value, before: Fields<'_>) {
    let used: HashSet<i64> = Fields(service)
        .get("spec")
        .list("ports")
        .iter()
        .map(|port| Fields(port).number("nodePort"))
        .collect();
    let named = before.list("ports").iter().map(Fields);
    let by_name: HashMap<&str, i64> =
        named.map(|port| (port.text("name"), port.number("nodePort"))).collect();
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        let old = by_name.get(Fields(port).text("name")).copied().unwrap_or(0);
        if Fields(port).number("nodePort") == 0 && !used.contains(&old) {
            port["nodePort"] = old.into();
        }
    }
}

/// Clients that know only `clusterIP` change `clusterIPs` along with it.
fn sync_cluster_ips(service: &mut Value, before: Fields<'_>) {
    let after = Fields(service).get("spec");
    let (old, new) = (before.text("clusterIP").to_owned(), after.text("clusterIP").to_owned());
    let all_same = before.texts("clusterIPs") == after.texts("clusterIPs");
    if !before.list("clusterIPs").is_empty() && after.list("clusterIPs").is_empty() && old == new {
        service["spec"]["clusterIPs"] = before.get("clusterIPs").0.clone();
    } else if old != new && all_same {
        match !old.is_empty() && new.is_empty() {
            true => remove(service, "clusterIPs"),
            false => service["spec"]["clusterIPs"] = json!([new]),
        }
    }
}

/// Removes the fields that the type before had a use for and the new one has not.
pub(super) fn drop_unused(service: &mut Value, old: &Value) {
    let before = Fields(old).get("spec");
    let after = |service: &Value| Fields(service).get("spec").0.clone();
    let same = |service: &Value, field: &str| Fields(service).get("spec").get(field).0 == before.get(field).0;
    if has_cluster_ip(before) && !has_cluster_ip(Fields(&after(service))) {
        if same(service, "clusterIP") && same(service, "clusterIPs") {
            remove(service, "clusterIP");
            remove(service, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if same(service, field) {
                remove(service, field);
            }
        }
    }
    // A load balancer keeps the node ports that it has, also if it gets no new ones.
    let may_have_ports = |spec: Fields<'_>| matches!(spec.text("type"), "NodePort" | "LoadBalancer");
    if may_have_ports(before) && !may_have_ports(Fields(&after(service))) && same_node_ports(service, before)
    {
        for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
            _ = port.as_object_mut().map(|port| port.remove("nodePort"));
        }
    }
    if needs_health_check(before)
        && !needs_health_check(Fields(&after(service)))
        && same(service, "healthCheckNodePort")
    {
        remove(service, "healthCheckNodePort");
    }
    let kind = Fields(service).get("spec").text("type").to_owned();
    if before.text("type") == "LoadBalancer" && kind != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(service, field) {
                remove(service, field);
            }
        }
    }
    let was_external = is_externally_accessible(before.text("type"), before);
    let is_external = is_externally_accessible(&kind, Fields(service).get("spec"));
    if was_external && !is_external && same(service, "externalTrafficPolicy") {
        remove(service, "externalTrafficPolicy");
    }
    if kind != "LoadBalancer" {
        service["status"]["loadBalancer"] = json!({});
    }
}

/// Whether a client asks for no node port that the Service did not have.
fn same_node_ports(service: &Value, before: Fields<'_>) -> bool {
    let all = |spec: Fields<'_>| -> HashSet<i64> {
        spec.list("ports")
            .iter()
            .map(|port| Fields(port).number("nodePort"))
            .filter(|port| *port != 0)
            .collect()
    };
    all(Fields(service).get("spec")).is_subset(&all(before))
}

/// What must not change.
pub(super) fn check(service: &Value, old: &Value) -> Causes {
    let mut causes = Causes::default();
    let (before, after) = (Fields(old).get("spec"), Fields(service).get("spec"));
    if has_cluster_ip(before) && has_cluster_ip(after) {
        check_cluster_ips(before, after, &mut causes);
        check_families(before, after, &mut causes);
    }
    let is_load_balancer = |spec: Fields<'_>| spec.text("type") == "LoadBalancer";
    let class = |spec: Fields<'_>| spec.get("loadBalancerClass").0.clone();
    if is_load_balancer(before) && is_load_balancer(after) && class(before) != class(after) {
        causes.invalid("spec.loadBalancerClass", &class(after), "may not change once set");
    }
    let port = |spec: Fields<'_>| spec.number("healthCheckNodePort");
    if needs_health_check(before) && needs_health_check(after) && port(before) != port(after) {
        causes.forbidden("spec.healthCheckNodePort", "field is immutable");
    }
    causes
}

fn is_headless(spec: Fields<'_>) -> bool {
    spec.texts("clusterIPs") == [HEADLESS]
}

fn check_cluster_ips(before: Fields<'_>, after: Fields<'_>, causes: &mut Causes) {
    if is_headless(before) && is_headless(after) {
        return;
    }
    let (old, new) = (before.texts("clusterIPs"), after.texts("clusterIPs"));
    let all = json!(new);
    let changed = |index: usize, causes: &mut Causes| {
        causes.invalid(format!("spec.clusterIPs[{index}]"), &all, "may not change once set");
    };
    if old.len() == new.len() {
        let differing = old.iter().zip(&new).enumerate().filter(|(_, (old, new))| old != new);
        differing.for_each(|(index, _)| changed(index, causes));
        return;
    }
    if old.len() > new.len() && new.is_empty() {
        causes.invalid("spec.clusterIPs[0]", &all, "primary clusterIP can not be unset");
    }
    if let (Some(old), Some(new)) = (old.first(), new.first())
        && old != new
    {
        changed(0, causes);
    }
    if old.len() > new.len() && new.len() == 1 && after.text("ipFamilyPolicy") != "SingleStack" {
        let why = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        causes.invalid("spec.ipFamilyPolicy", after.get("ipFamilyPolicy").0, why);
    }
}

fn check_families(before: Fields<'_>, after: Fields<'_>, causes: &mut Causes) {
    if is_headless(before) || is_headless(after) {
        return;
    }
    const CHANGED: &str = "may not change once set";
    let field = "spec.ipFamilies[0]";
    let (old, new) = (before.texts("ipFamilies"), after.texts("ipFamilies"));
    if old.len() == new.len() {
        for _ in old.iter().zip(&new).filter(|(old, new)| old != new) {
            causes.invalid(field, &json!(new), CHANGED);
        }
        return;
    }
    if old.len() > new.len() && after.list("clusterIPs").is_empty() {
        causes.invalid(field, &json!(new), "primary ipFamily can not be unset");
    }
    if let (Some(old), Some(first)) = (old.first(), new.first())
        && old != first
    {
        // The addresses are shown in place of the families.
        causes.invalid(field, &json!(after.texts("clusterIPs")), CHANGED);
    }
    if old.len() > new.len() && new.len() == 1 && after.text("ipFamilyPolicy") != "SingleStack" {
        let why = "must be set to 'SingleStack' when releasing the secondary ipFamily";
        causes.invalid("spec.ipFamilyPolicy", after.get("ipFamilyPolicy").0, why);
    }
}
