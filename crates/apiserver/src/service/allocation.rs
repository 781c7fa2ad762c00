//! The addresses and ports that a Service gets from the pools of the cluster.
//!
//! Which of them are free is known by the [`Pools`], which note what was taken; what a Service does not need any more
//! is what the Service before has and the new one has not.

use super::{HEADLESS, Refusal, chooses_node_ports, families, needs_health_check};
use crate::validation::{Causes, Fields};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;

/// Why nothing could be taken from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Not what was asked for, and why.
    Refused(String),
    /// Nothing is left.
    Full,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::Refused(why) => f.write_str(why),
            Shortage::Full => f.write_str("range is full"),
        }
    }
}

/// The free addresses and ports of the cluster.
pub trait Pools {
    /// Takes an address of a family: this one, or any.
    fn address(&mut self, family: &str, wanted: Option<&str>) -> Result<String, Shortage>;

    /// Takes a node port: this one, or any.
    fn node_port(&mut self, wanted: Option<i64>) -> Result<i64, Shortage>;
}

/// Takes what a Service needs and does not have. `old` is the Service before an update.
pub(super) fn allocate(
    service: &mut Value,
    old: Option<&Value>,
    pools: &mut dyn Pools,
) -> Result<(), Refusal> {
    addresses(service, old, pools)?;
    let has_ports =
        |service: &Value| matches!(Fields(service).get("spec").text("type"), "NodePort" | "LoadBalancer");
    if has_ports(service) {
        match old {
            None => new_node_ports(service, pools)?,
            Some(old) => changed_node_ports(service, old, pools)?,
        }
    }
    let had_check = old.is_some_and(|old| needs_health_check(Fields(old).get("spec")));
    if needs_health_check(Fields(service).get("spec")) && !had_check {
        health_check_port(service, pools)?;
    }
    Ok(())
}

fn addresses(service: &mut Value, old: Option<&Value>, pools: &mut dyn Pools) -> Result<(), Refusal> {
    let spec = Fields(service).get("spec");
    let mut ips: Vec<String> = spec.texts("clusterIPs").into_iter().map(str::to_owned).collect();
    let families: Vec<String> = spec.texts("ipFamilies").into_iter().map(str::to_owned).collect();
    if spec.text("type") == "ExternalName" || ips.first().is_some_and(|ip| ip == HEADLESS) {
        return Ok(());
    }
    let begin = match old.map(|old| Fields(old).get("spec")) {
        None => 0,
        Some(old) if old.text("type") == "ExternalName" => 0,
        Some(old) => {
            let was_headless = old.texts("clusterIPs").first() == Some(&HEADLESS);
            let is_upgraded = old.list("ipFamilies").len() == 1 && families.len() == 2;
            if was_headless || !is_upgraded || families::is_unchanged_preference(spec, old) {
                return Ok(());
            }
            1
        }
    };
    for (index, family) in families.iter().enumerate().skip(begin) {
        let wanted = ips.get(index).filter(|ip| !ip.is_empty()).cloned();
        let taken = pools.address(family, wanted.as_deref()).map_err(|why| {
            if why == Shortage::Full {
                let name = Fields(service).get("metadata").text("name");
                return Refusal::Internal(format!(
                    "failed to allocate a serviceIP for Service {name:?}: {why}"
                ));
            }
            let mut causes = Causes::default();
            let mut all = ips.clone();
            all.resize(families.len().max(ips.len()), String::new());
            let which = wanted.as_ref().map_or(String::new(), |ip| format!(" {ip}"));
            causes.invalid("spec.clusterIPs", &json!(all), format!("failed to allocate IP{which}: {why}"));
            Refusal::Invalid(causes)
        })?;
        match ips.get_mut(index) {
            Some(ip) => *ip = taken,
            None => ips.push(taken),
        }
    }
    let spec = &mut service["spec"];
    if let Some(first) = ips.first() {
        spec["clusterIP"] = first.as_str().into();
    }
    spec["clusterIPs"] = ips.into();
    Ok(())
}

fn take_port(index: usize, wanted: i64, pools: &mut dyn Pools) -> Result<i64, Refusal> {
    pools.node_port(Some(wanted)).map_err(|why| {
        let mut causes = Causes::default();
        causes.invalid(format!("spec.ports[{index}].nodePort"), &json!(wanted), why);
        Refusal::Invalid(causes)
    })
}

fn any_port(pools: &mut dyn Pools) -> Result<i64, Refusal> {
    pools.node_port(None).map_err(|why| Refusal::Internal(format!("failed to allocate a nodePort: {why}")))
}

/// Ports of one number and different protocols share a node port.
fn new_node_ports(service: &mut Value, pools: &mut dyn Pools) -> Result<(), Refusal> {
    let allocates = chooses_node_ports(Fields(service).get("spec"));
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let mut taken: HashMap<i64, i64> = HashMap::new();
    for (index, port) in ports.iter().map(Fields).enumerate() {
        let (number, own) = (port.number("port"), port.number("nodePort"));
        if own == 0 && !allocates {
            continue;
        }
        let node_port = match taken.get(&number) {
            None => {
                let same = ports.iter().map(Fields).filter(|other| other.number("port") == number);
                let wanted = same.map(|other| other.number("nodePort")).find(|wanted| *wanted != 0);
                let got = match wanted {
                    Some(wanted) => take_port(index, wanted, pools)?,
                    None => any_port(pools)?,
                };
                taken.insert(number, got);
                got
            }
            Some(shared) if own == 0 => *shared,
            Some(shared) if own == *shared => own,
            Some(_) => take_port(index, own, pools)?,
        };
        service["spec"]["ports"][index]["nodePort"] = node_port.into();
    }
    Ok(())
}

fn changed_node_ports(service: &mut Value, old: &Value, pools: &mut dyn Pools) -> Result<(), Refusal> {
    let allocates = chooses_node_ports(Fields(service).get("spec"));
    let known: Vec<i64> =
        Fields(old).get("spec").list("ports").iter().map(|port| Fields(port).number("nodePort")).collect();
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let mut taken: Vec<i64> = Vec::new();
    for (index, port) in ports.iter().map(Fields).enumerate() {
        let own = port.number("nodePort");
        let node_port = match own {
            0 if !allocates => continue,
            0 => any_port(pools)?,
            own if known.contains(&own) || taken.contains(&own) => own,
            own => take_port(index, own, pools)?,
        };
        taken.push(node_port);
        service["spec"]["ports"][index]["nodePort"] = node_port.into();
    }
    Ok(())
}

fn health_check_port(service: &mut Value, pools: &mut dyn Pools) -> Result<(), Refusal> {
    let wanted =
        Some(Fields(service).get("spec").number("healthCheckNodePort")).filter(|wanted| *wanted != 0);
    let taken = pools.node_port(wanted).map_err(|why| {
        let which = match wanted {
            Some(wanted) => format!("requested HealthCheck NodePort {wanted}"),
            None => "a HealthCheck NodePort 0".to_owned(),
        };
        Refusal::Internal(format!("failed to allocate {which}: {why}"))
    })?;
    service["spec"]["healthCheckNodePort"] = taken.into();
    Ok(())
}
