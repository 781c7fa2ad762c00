//! A kernel that lacks something: it is named, with what to do about it, and nothing else is done instead.

use super::{becomes, start};
use crate::agent_lab::{AgentLab, PORTWAY};
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::guest;
use std::process::Command;

/// On a kernel without ip_vs.
pub(crate) const TESTS: &[Test] = &[("without_ip_vs_the_error_names_the_remedy", without)];

/// On one with it, whose modules may be hidden.
pub(crate) const MODULES: &[Test] = &[
    ("a_missing_scheduler_module_is_named", scheduler),
    ("a_missing_scheduler_of_a_service_is_replaced", of_one),
];

/// The last thing that an agent says that cannot start.
fn refuses(world: &AgentLab, flags: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new(PORTWAY);
    command.arg("proxy").args(world.flags()).args(flags);
    let output = world.run(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(1), || format!("{}: {said}", output.status))?;
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

fn without(world: &mut AgentLab) -> Outcome {
    let said = refuses(world, &["--proxy-mode=ipvs"])?;
    let right = ["portway: ", "this kernel lacks ip_vs", "modprobe -a ip_vs", "--proxy-mode=nftables"];
    ensure(right.iter().all(|word| said.contains(word)), || format!("not {right:?}: {said}"))?;
    // Each module that is missing, and only those.
    let lacks = said.split("lacks ").nth(1).and_then(|s| s.split(':').next()).unwrap_or_default();
    let lacks: Vec<&str> = lacks.split(", ").collect();
    for module in ["ip_vs", "dummy", "ip_set", "nf_conntrack"] {
        let missing = !guest::has_module(module);
        ensure(lacks.contains(&module) == missing, || format!("{module} is missing: {missing}; {said}"))?;
    }
    ensure(said.contains(&format!("modprobe -a {}", lacks.join(" "))), || said.clone())?;
    // Nothing was made instead.
    world.reaches_nobody("10.96.0.1:80".parse()?)?;
    let left = world.ipvs_left()?;
    ensure(left.is_empty(), || format!("{left:?}"))?;
    let tables = world.nft(&["list", "tables"])?;
    ensure(tables.is_empty(), || tables.clone())
}

fn scheduler(world: &mut AgentLab) -> Outcome {
    let _hidden = guest::hide_module("ip_vs_ovf")?;
    world.kubelet(Legacy)?;
    let said = refuses(world, &["--proxy-mode=ipvs", "--ipvs-scheduler=ovf"])?;
    let right = ["portway: ", "this kernel lacks ip_vs_ovf: ", "modprobe -a ip_vs_ovf "];
    ensure(right.iter().all(|word| said.contains(word)), || format!("not {right:?}: {said}"))?;
    world.reaches_nobody("10.96.0.1:80".parse()?)?;
    let left = world.ipvs_left()?;
    ensure(left.is_empty(), || format!("{left:?}"))
}

/// Asked for by one Service only, it is no reason to stop.
fn of_one(world: &mut AgentLab) -> Outcome {
    let _hidden = guest::hide_module("ip_vs_fo")?;
    let odd = objects::service("odd", "10.96.0.80", "");
    let annotated = "metadata:\n  annotations: {portway.dev/ipvs-scheduler: fo}\n";
    world.apply("odd.yaml", &odd.replacen("metadata:\n", annotated, 1));
    world.apply("odd-slice.yaml", &objects::slice("odd", "odd", &world.pod_ips("pod1b")[..1]));
    start(world, &[])?;
    world.web_works()?;
    world.logged(&[
        "WARN",
        "default/odd",
        "portway.dev/ipvs-scheduler",
        "modprobe ip_vs_fo",
        "rr is used",
    ])?;
    becomes(|| world.servers(), |servers| servers.contains_key("TCP 10.96.0.80:80 rr"))?;
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])
}
