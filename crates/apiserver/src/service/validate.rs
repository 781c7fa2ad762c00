//! What is wrong with a Service.

use super::{HEADLESS, is_externally_accessible, is_headless, needs_health_check};
use crate::validation::addresses::{check_address, check_not_special, check_range};
use crate::validation::names::{check_labels, dns_label, dns_subdomain, port_name, qualified_name};
use crate::validation::{Causes, Fields};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::IpAddr;

const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";
/// Seconds of affinity at most: a day.
const MAX_AFFINITY_SECONDS: i64 = 86_400;

/// Checks the specification. `old` is the Service before an update.
pub(super) fn check(service: &Value, old: Option<&Value>) -> Causes {
    let mut causes = Causes::default();
    let checks: [fn(Fields<'_>, Option<Fields<'_>>, &mut Causes); 9] = [
        check_annotations,
        check_kind,
        check_ports,
        check_selection,
        check_cluster_ips,
        check_external_ips,
        check_port_pairs,
        check_load_balancer,
        check_policies,
    ];
    for check in checks {
        check(Fields(service), old.map(Fields), &mut causes);
    }
    causes
}

fn check_annotations(service: Fields<'_>, _: Option<Fields<'_>>, causes: &mut Causes) {
    let annotations = service.get("metadata").get("annotations");
    let (mode, hints) = (annotations.text(TOPOLOGY_MODE), annotations.text(TOPOLOGY_HINTS));
    if annotations.has(TOPOLOGY_MODE) && annotations.has(TOPOLOGY_HINTS) && mode != hints {
        let field = format!("metadata.annotations[{TOPOLOGY_MODE}]");
        let why = format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
        causes.invalid(field, &json!(mode), why);
    }
}

fn check_kind(service: Fields<'_>, _: Option<Fields<'_>>, causes: &mut Causes) {
    let spec = service.get("spec");
    let kind = spec.text("type");
    if spec.list("ports").is_empty() && !is_headless(spec) && kind != "ExternalName" {
        causes.required("spec.ports");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let why = format!("may not be set to 'None' for {kind} services");
            causes.invalid("spec.clusterIPs[0]", &json!(HEADLESS), why);
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                let is_set = match field {
                    "ipFamilyPolicy" => spec.has(field),
                    list => !spec.list(list).is_empty(),
                };
                if is_set {
                    causes.forbidden(format!("spec.{field}"), "may not be set for ExternalName services");
                }
            }
            // A trailing dot says that the name is complete.
            let name = spec.text("externalName");
            let name = name.strip_suffix('.').unwrap_or(name);
            match name.is_empty() {
                true => causes.required("spec.externalName"),
                false => causes.invalid_for("spec.externalName", name, dns_subdomain(name)),
            }
        }
        _ => {}
    }
}

fn check_ports(service: Fields<'_>, _: Option<Fields<'_>>, causes: &mut Causes) {
    let ports = service.get("spec").list("ports");
    let mut names: HashSet<&str> = HashSet::new();
    for (index, port) in ports.iter().map(Fields).enumerate() {
        let field = |name: &str| format!("spec.ports[{index}].{name}");
        let name = port.text("name");
        if name.is_empty() {
            if ports.len() > 1 {
                causes.required(field("name"));
            }
        } else {
            causes.invalid_for(&field("name"), name, dns_label(name));
            if !names.insert(name) {
                causes.duplicate(field("name"), json!(name));
            }
        }
        check_port_number(&field("port"), port.number("port"), causes);
        match port.text("protocol") {
            "" => causes.required(field("protocol")),
            protocol => causes.one_of(&field("protocol"), protocol, &["SCTP", "TCP", "UDP"]),
        }
        match port.get("targetPort").0 {
            Value::String(name) => causes.invalid_for(&field("targetPort"), name, port_name(name)),
            number => check_port_number(&field("targetPort"), number.as_i64().unwrap_or_default(), causes),
        }
        if port.has("appProtocol") {
            let protocol = port.text("appProtocol");
            causes.invalid_for(&field("appProtocol"), protocol, qualified_name(protocol));
        }
    }
}

fn check_port_number(field: &str, number: i64, causes: &mut Causes) {
    if !(1..=65_535).contains(&number) {
        causes.invalid(field, &json!(number), "must be between 1 and 65535, inclusive");
    }
}

fn check_selection(service: Fields<'_>, _: Option<Fields<'_>>, causes: &mut Causes) {
    let spec = service.get("spec");
    check_labels("spec.selector", spec.map("selector"), causes);
    let affinity = spec.text("sessionAffinity");
    causes.one_of("spec.sessionAffinity", affinity, &["ClientIP", "None"]);
    if affinity == "ClientIP" {
        let seconds = spec.get("sessionAffinityConfig").get("clientIP").number("timeoutSeconds");
        if !(1..=MAX_AFFINITY_SECONDS).contains(&seconds) {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            let why = format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}");
            causes.invalid(field, &json!(seconds), why);
        }
    }
}

fn check_cluster_ips(service: Fields<'_>, old: Option<Fields<'_>>, causes: &mut Causes) {
    causes.extend(cluster_ips(service, old));
}

/// What is wrong with the cluster IPs, the families and their policy. Also checked before addresses are allocated.
pub(super) fn cluster_ips(service: Fields<'_>, old: Option<Fields<'_>>) -> Causes {
    let mut causes = Causes::default();
    let spec = service.get("spec");
    if spec.text("type") == "ExternalName" {
        return causes;
    }
    let (ip, ips, families) = (spec.text("clusterIP"), spec.texts("clusterIPs"), spec.texts("ipFamilies"));
    let all = json!(ips);
    match (ip.is_empty(), ips.first()) {
        (false, None) => causes.required("spec.clusterIPs"),
        (false, Some(first)) if *first != ip => {
            causes.invalid("spec.clusterIPs", &all, "first value must match `clusterIP`");
        }
        (true, Some(_)) => {
            causes.invalid("spec.clusterIPs", &all, "must be empty when `clusterIP` is not specified");
        }
        _ => {}
    }
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        causes.one_of(&field, family, &["IPv4", "IPv6"]);
        if families[..index].contains(family) {
            causes.duplicate(field, json!(family));
        }
    }
    if spec.has("ipFamilyPolicy") {
        let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        causes.one_of("spec.ipFamilyPolicy", spec.text("ipFamilyPolicy"), &policies);
    }
    let known = old.map(|old| old.get("spec").texts("clusterIPs")).unwrap_or_default();
    let mut malformed = false;
    for (index, ip) in ips.iter().enumerate() {
        if index == 0 && *ip == HEADLESS {
            if ips.len() > 1 {
                malformed = true;
                causes.invalid("spec.clusterIPs", &all, "'None' must be the first and only value");
            }
            continue;
        }
        malformed |= !check_address(&format!("spec.clusterIPs[{index}]"), ip, &known, &mut causes);
    }
    if ips.len() > 2 {
        causes.invalid("spec.clusterIPs", &all, "may only hold up to 2 values");
    }
    if malformed {
        return causes;
    }
    let is_v6 = |ip: &str| ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
    if ips.len() > 1 && ips.iter().all(|ip| is_v6(ip) == is_v6(ips[0])) {
        causes.invalid("spec.clusterIPs", &all, "may specify no more than one IP for each IP family");
    }
    if !is_headless(spec) {
        for (index, (ip, family)) in ips.iter().zip(&families).enumerate() {
            let fits = match *family {
                "IPv4" => !is_v6(ip),
                "IPv6" => is_v6(ip),
                _ => true,
            };
            if !fits {
                let why = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
                causes.invalid(format!("spec.clusterIPs[{index}]"), &json!(ip), why);
            }
        }
    }
    causes
}

fn check_external_ips(service: Fields<'_>, old: Option<Fields<'_>>, causes: &mut Causes) {
    let spec = service.get("spec");
    let known = old.map(|old| old.get("spec").texts("externalIPs")).unwrap_or_default();
    for (index, ip) in spec.texts("externalIPs").into_iter().enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        if check_address(&field, ip, &known, causes) {
            check_not_special(&field, ip, causes);
        }
    }
}

fn check_port_pairs(service: Fields<'_>, _: Option<Fields<'_>>, causes: &mut Causes) {
    let spec = service.get("spec");
    let kind = spec.text("type");
    match kind {
        "" => causes.required("spec.type"),
        kind => causes.one_of("spec.type", kind, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]),
    }
    let ports = || spec.list("ports").iter().map(Fields).enumerate();
    for (index, _) in ports().filter(|(_, port)| kind == "ClusterIP" && port.number("nodePort") != 0) {
        let field = format!("spec.ports[{index}].nodePort");
        causes.forbidden(field, "may not be used when `type` is 'ClusterIP'");
    }
    let mut node_ports = HashSet::new();
    for (index, port) in ports().filter(|(_, port)| port.number("nodePort") != 0) {
        if !node_ports.insert((port.text("protocol"), port.number("nodePort"))) {
            causes.duplicate(format!("spec.ports[{index}].nodePort"), port.number("nodePort"));
        }
    }
    let mut pairs = HashSet::new();
    for (index, port) in ports() {
        let (protocol, number) = (port.text("protocol"), port.number("port"));
        if !pairs.insert((protocol, number)) {
            // The internal form of a port with only these two.
            let internal = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{number},\"TargetPort\":0,\"NodePort\":0}}",
                json!(protocol)
            );
            causes.duplicate(format!("spec.ports[{index}]"), internal);
        }
    }
}

fn check_load_balancer(service: Fields<'_>, old: Option<Fields<'_>>, causes: &mut Causes) {
    let spec = service.get("spec");
    let is_load_balancer = spec.text("type") == "LoadBalancer";
    let annotations =
        |service: Fields<'_>| service.get("metadata").get("annotations").0.get(SOURCE_RANGES).cloned();
    let ranges = spec.texts("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // The field has this name in messages.
        let field = "spec.LoadBalancerSourceRanges";
        if !is_load_balancer {
            causes.forbidden(field, ONLY_LOAD_BALANCER);
        }
        let known = old.map(|old| old.get("spec").texts("loadBalancerSourceRanges")).unwrap_or_default();
        let known: Vec<&str> = known.into_iter().map(str::trim).collect();
        for (index, range) in ranges.into_iter().enumerate() {
            check_range(&format!("{field}[{index}]"), range.trim(), &known, causes);
        }
    } else if let Some(annotation) = annotations(service) {
        let field = format!("metadata.annotations[{SOURCE_RANGES}]");
        if !is_load_balancer {
            causes.forbidden(field.as_str(), ONLY_LOAD_BALANCER);
        }
        let text = annotation.as_str().unwrap_or_default().trim();
        if !text.is_empty() && old.and_then(annotations).as_ref() != Some(&annotation) {
            text.split(',').for_each(|range| check_range(&field, range.trim(), &[], causes));
        }
    }
    let field = "allocateLoadBalancerNodePorts";
    match (spec.has(field), is_load_balancer) {
        (true, false) => causes.forbidden(format!("spec.{field}"), ONLY_LOAD_BALANCER),
        (false, true) => causes.required(field),
        _ => {}
    }
    if spec.has("loadBalancerClass") {
        let class = spec.text("loadBalancerClass");
        match is_load_balancer {
            true => causes.invalid_for("spec.loadBalancerClass", class, qualified_name(class)),
            false => causes.forbidden("spec.loadBalancerClass", ONLY_LOAD_BALANCER),
        }
    }
}

fn check_policies(service: Fields<'_>, _: Option<Fields<'_>>, causes: &mut Causes) {
    const POLICIES: [&str; 2] = ["Cluster", "Local"];
    let spec = service.get("spec");
    let kind = spec.text("type");
    let external = spec.text("externalTrafficPolicy");
    let field = "spec.externalTrafficPolicy";
    match (is_externally_accessible(kind, spec), external) {
        (false, "") => {}
        (false, external) => {
            causes.invalid(field, &json!(external), "may only be set for externally-accessible services");
        }
        (true, "") => causes.required(field),
        (true, external) => causes.one_of(field, external, &POLICIES),
    }
    let (field, number) = ("spec.healthCheckNodePort", spec.number("healthCheckNodePort"));
    match (needs_health_check(spec), number) {
        (false, 0) => {}
        (false, number) => {
            let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            causes.invalid(field, &json!(number), why);
        }
        (true, 0) => causes.required(field),
        (true, number) => check_port_number(field, number, causes),
    }
    if spec.has("internalTrafficPolicy") {
        causes.one_of("spec.internalTrafficPolicy", spec.text("internalTrafficPolicy"), &POLICIES);
    } else if matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        causes.required("spec.internalTrafficPolicy");
    }
    if spec.has("trafficDistribution") {
        let supported = ["PreferClose", "PreferSameZone", "PreferSameNode"];
        causes.one_of("spec.trafficDistribution", spec.text("trafficDistribution"), &supported);
    }
}
