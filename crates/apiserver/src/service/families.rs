//! The IP families of a Service: what follows from its fields and the families that the cluster has.

use super::HEADLESS;
use super::validate::cluster_ips;
use crate::validation::{Causes, Fields};
use serde_json::{Value, json};
use std::net::IpAddr;

/// The families of a cluster, the default one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Families(pub Vec<&'static str>);

/// Sets `ipFamilyPolicy` and `ipFamilies` of a new Service, or says what is wrong with its cluster IPs.
pub(super) fn set(service: &mut Value, cluster: &Families) -> Result<(), Causes> {
    let spec = Fields(service).get("spec");
    if spec.text("type") == "ExternalName" {
        return Ok(());
    }
    let is_free = spec.text("clusterIP") == HEADLESS && spec.map("selector").next().is_none();
    if !spec.has("ipFamilyPolicy") {
        service["spec"]["ipFamilyPolicy"] = if is_free { "RequireDualStack" } else { "SingleStack" }.into();
    }
    let causes = cluster_ips(Fields(service), None);
    if !causes.is_empty() {
        return Err(causes);
    }
    let spec = Fields(service).get("spec");
    let policy = spec.text("ipFamilyPolicy").to_owned();
    let (ips, mut families) = (spec.texts("clusterIPs"), owned(&spec.texts("ipFamilies")));
    let mut causes = Causes::default();
    for (many, what) in [(ips.len() == 2, "cluster IPs"), (families.len() == 2, "IP families")] {
        if policy == "SingleStack" && many {
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
    if !causes.is_empty() {
        return Err(causes);
    }
    // A headless Service without a selector may have families that the cluster does not have.
    if !is_free {
        check_configured(&policy, &families, cluster)?;
    }
    if families.is_empty() {
        families.extend(cluster.0.first().map(|family| (*family).to_owned()));
    }
    if policy != "SingleStack" && families.len() == 1 && (is_free || cluster.0.len() == 2) {
        families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
    }
    service["spec"]["ipFamilies"] = json!(families);
    Ok(())
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn check_configured(policy: &str, families: &[String], cluster: &Families) -> Result<(), Causes> {
    let mut causes = Causes::default();
    if policy == "RequireDualStack" && cluster.0.len() < 2 {
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
