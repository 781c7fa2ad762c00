//! Kernels without a module that the mode needs: the error names the module and the command that loads it, and no other
//! mode is used instead.

use super::{start, wait_until};
use crate::agent_lab::{AgentLab, PORTWAY};
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::guest;
use std::process::Command;

/// Tests for a kernel without ip_vs.
pub(crate) const TESTS: &[Test] = &[("without_ip_vs_the_error_names_the_modules_to_load", without_ip_vs)];

/// Tests for a kernel with ip_vs whose modules can be hidden.
pub(crate) const MODULES: &[Test] = &[
    ("a_missing_scheduler_module_is_named", missing_scheduler),
    ("a_missing_scheduler_of_a_service_is_replaced", missing_scheduler_of_a_service),
];

/// The last line on standard error of an agent that cannot start.
fn start_error(lab: &AgentLab, flags: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new(PORTWAY);
    command.arg("proxy").args(lab.flags()).args(flags);
    let output = lab.run(command)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(1), || format!("{}: {stderr}", output.status))?;
    Ok(stderr.lines().last().unwrap_or_default().to_owned())
}

fn without_ip_vs(lab: &mut AgentLab) -> Outcome {
    let error = start_error(lab, &["--proxy-mode=ipvs"])?;
    let texts = ["portway: ", "this kernel lacks ip_vs", "modprobe -a ip_vs", "--proxy-mode=nftables"];
    ensure(texts.iter().all(|text| error.contains(text)), || format!("no {texts:?} in: {error}"))?;
    // Exactly the missing modules are named.
    let lacks = error.split("lacks ").nth(1).and_then(|s| s.split(':').next()).unwrap_or_default();
    let lacks: Vec<&str> = lacks.split(", ").collect();
    for module in ["ip_vs", "dummy", "ip_set", "nf_conntrack"] {
        let missing = !guest::has_module(module);
        ensure(lacks.contains(&module) == missing, || format!("{module} is missing: {missing}; {error}"))?;
    }
    ensure(error.contains(&format!("modprobe -a {}", lacks.join(" "))), || error.clone())?;
    // No rules of another mode were created.
    lab.reaches_no_pod("10.96.0.1:80".parse()?)?;
    let left = lab.ipvs_leftovers()?;
    ensure(left.is_empty(), || format!("{left:?}"))?;
    let tables = lab.nft(&["list", "tables"])?;
    ensure(tables.is_empty(), || tables.clone())
}

fn missing_scheduler(lab: &mut AgentLab) -> Outcome {
    let _hidden = guest::hide_module("ip_vs_ovf")?;
    lab.kubelet(Legacy)?;
    let error = start_error(lab, &["--proxy-mode=ipvs", "--ipvs-scheduler=ovf"])?;
    let texts = ["portway: ", "this kernel lacks ip_vs_ovf: ", "modprobe -a ip_vs_ovf "];
    ensure(texts.iter().all(|text| error.contains(text)), || format!("no {texts:?} in: {error}"))?;
    lab.reaches_no_pod("10.96.0.1:80".parse()?)?;
    let left = lab.ipvs_leftovers()?;
    ensure(left.is_empty(), || format!("{left:?}"))
}

/// A missing scheduler that only one Service requests does not prevent the start.
fn missing_scheduler_of_a_service(lab: &mut AgentLab) -> Outcome {
    let _hidden = guest::hide_module("ip_vs_fo")?;
    let odd = objects::service("odd", "10.96.0.80", "");
    let annotated = "metadata:\n  annotations: {portway.dev/ipvs-scheduler: fo}\n";
    lab.apply("odd.yaml", &odd.replacen("metadata:\n", annotated, 1));
    lab.apply("odd-slice.yaml", &objects::slice("odd", "odd", &lab.pod_ips("pod1b")[..1]));
    start(lab, &[])?;
    lab.web_works()?;
    lab.logged(&["WARN", "default/odd", "portway.dev/ipvs-scheduler", "modprobe ip_vs_fo", "rr is used"])?;
    wait_until(|| lab.servers(), |servers| servers.contains_key("TCP 10.96.0.80:80 rr"))?;
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])
}
