//! The IP families of a Service: what follows from its fields, from those before, and from the families that the cluster
//! has.

use super::HEADLESS;
use super::validate::cluster_ips;
use crate::validation::{Causes, Fields};
use serde_json::{Value, json};
use std::net::IpAddr;

const SINGLE: &str = "SingleStack";
const PREFER_DUAL: &str = "PreferDualStack";
const REQUIRE_DUAL: &str = "RequireDualStack";

/// The families of a cluster, the default one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Families(pub Vec<&'static str>);

/// Whether a Service preferred two families before as now, and nothing about them has changed: then it gets no second
/// one only because the cluster has it now.
pub(super) fn is_unchanged_preference(spec: Fields<'_>, old: Fields<'_>) -> bool {
    let prefers = |spec: Fields<'_>| spec.text("ipFamilyPolicy") == PREFER_DUAL;
    prefers(spec)
        && (prefers(old) || !old.has("ipFamilyPolicy"))
        && spec.text("type") == old.text("type")
        && matches!(spec.text("type"), "ClusterIP" | "NodePort" | "LoadBalancer")
        && spec.texts("clusterIPs") == old.texts("clusterIPs")
        && spec.texts("ipFamilies") == old.texts("ipFamilies")
}

/// Sets `ipFamilyPolicy` and `ipFamilies`, or says what is wrong with the cluster IPs.
pub(super) fn set(service: &mut Value, old: Option<&Value>, cluster: &Families) -> Result<(), Causes> {
    let spec = Fields(service).get("spec");
    let before = old.map(|old| Fields(old).get("spec"));
    if spec.text("type") == "ExternalName" || before.is_some_and(|old| is_unchanged_preference(spec, old)) {
        return Ok(());
    }
    let is_free = spec.text("clusterIP") == HEADLESS && spec.map("selector").next().is_none();
    if !spec.has("ipFamilyPolicy") {
        let known = before.filter(|old| old.has("ipFamilyPolicy")).map(|old| old.text("ipFamilyPolicy"));
        let policy = known.unwrap_or(if is_free { REQUIRE_DUAL } else { SINGLE });
        service["spec"]["ipFamilyPolicy"] = policy.into();
    }
    let causes = cluster_ips(Fields(service), old.map(Fields));
    if !causes.is_empty() {
        return Err(causes);
    }
    if let Some(before) = before {
        release_second(service, before)?;
    }
    let mut families = infer(service, cluster)?;
    let policy = Fields(service).get("spec").text("ipFamilyPolicy").to_owned();
    // A headless Service without a selector may have families that the cluster does not have.
    if !is_free {
        check_configured(&policy, &families, cluster)?;
    }
    if families.is_empty() {
        families.extend(cluster.0.first().map(|family| (*family).to_owned()));
    }
    if policy != SINGLE && families.len() == 1 && (is_free || cluster.0.len() == 2) {
        families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
    }
    service["spec"]["ipFamilies"] = json!(families);
    Ok(())
}

/// With one family as the policy, the second address and family go. With another policy they must not be left out.
fn release_second(service: &mut Value, before: Fields<'_>) -> Result<(), Causes> {
    let after = Fields(service).get("spec");
    let policy = after.text("ipFamilyPolicy").to_owned();
    if policy == SINGLE {
        for field in ["clusterIPs", "ipFamilies"] {
            let list = Fields(service).get("spec").texts(field);
            if list.len() > 1 && list == before.texts(field) {
                service["spec"][field] = json!([list[0]]);
            }
        }
        return Ok(());
    }
    let mut causes = Causes::default();
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let count = after.list(field).len();
        if count > 0 && count < before.list(field).len() {
            let why = format!("must be 'SingleStack' to release the secondary {what}");
            causes.invalid("spec.ipFamilyPolicy", &json!(policy), why);
        }
    }
    // Further mistakes are found along with these.
    match infer(service, &Families(vec!["IPv4", "IPv6"])) {
        Err(more) if !causes.is_empty() => causes.extend(more),
        _ => {}
    }
    if causes.is_empty() { Ok(()) } else { Err(causes) }
}

/// The families of a Service, those of its addresses included.
fn infer(service: &Value, cluster: &Families) -> Result<Vec<String>, Causes> {
    let spec = Fields(service).get("spec");
    let policy = spec.text("ipFamilyPolicy");
    let ips = spec.texts("clusterIPs");
    let mut families: Vec<String> = spec.texts("ipFamilies").into_iter().map(str::to_owned).collect();
    let mut causes = Causes::default();
    for (many, what) in [(ips.len() == 2, "cluster IPs"), (families.len() == 2, "IP families")] {
        if policy == SINGLE && many {
            let why =
                format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            causes.invalid("spec.ipFamilyPolicy", &json!(policy), why);
        }
    }
    for (index, ip) in ips.iter().enumerate().skip(families.len()).take_while(|(_, ip)| **ip != HEADLESS) {
        let family = if ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) { "IPv6" } else { "IPv4" };
        match cluster.0.contains(&family) {
            true => families.push(family.to_owned()),
            false => {
                let why = format!("{family} is not configured on this cluster");
                causes.invalid(format!("spec.clusterIPs[{index}]"), &json!(ips), why);
            }
        }
    }
    if causes.is_empty() { Ok(families) } else { Err(causes) }
}

fn check_configured(policy: &str, families: &[String], cluster: &Families) -> Result<(), Causes> {
    let mut causes = Causes::default();
    if policy == REQUIRE_DUAL && cluster.0.len() < 2 {
        let why = "this cluster is not configured for dual-stack services";
        causes.invalid("spec.ipFamilyPolicy", &json!(policy), why);
    }
    for (index, family) in
        families.iter().enumerate().filter(|(_, family)| !cluster.0.contains(&family.as_str()))
    {
        let field = format!("spec.ipFamilies[{index}]");
        causes.invalid(field, &json!(family), "not configured on this cluster");
    }
    if causes.is_empty() { Ok(()) } else { Err(causes) }
}
