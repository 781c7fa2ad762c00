//! `make demo`: a Service, from its YAML to the packet that arrives, on two nodes made of network namespaces.

mod stage;

use portway_lab::{Load, Outcome, Probe};
use stage::{Stage, command, heading, note};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    if let Err(e) = portway_lab::enter() {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("demo: {e}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<(), String> {
    heading("Two nodes with three pods each and a client outside, out of network namespaces");
    let mut stage = Stage::build()?;
    stage.describe();

    heading("Three Services, as YAML in a directory that both agents watch");
    stage.apply_services()?;

    heading("One agent on each node");
    stage.start_agents("nftables")?;

    heading("Requests spread over the pods");
    stage.show_requests()?;

    heading("A pod goes, and comes back");
    take_a_pod_away(&stage)?;

    heading("Somebody flushes all rules");
    break_the_rules(&mut stage)?;

    heading("What did it: elements of a set and a map");
    show_elements(&stage);

    heading("From nftables to iptables, while requests go on");
    switch_modes(&mut stage)?;

    heading("And away with it");
    stage.tear_down()
}

/// Pod `pod2a` leaves nginx; requests go to the others at once, and to it again once it is back.
fn take_a_pod_away(stage: &Stage) -> Result<(), String> {
    let (vip, from) = (stage::NGINX.address(), stage.lab.pod("pod1c"));
    let count = || Probe::tcp(from, vip).count(90).timeout(Duration::from_secs(2)).run();
    note("pod2a is taken out of nginx's EndpointSlice");
    stage.apply_endpoints(&stage::NGINX, &["pod1a", "pod1b"])?;
    let without = wait(count, |o| o.answers.len() == 2)?;
    println!("   pod1c → {vip}: {without}");
    note("and put back");
    stage.apply_endpoints(&stage::NGINX, stage::NGINX.pods)?;
    let with = wait(count, |o| o.answers.len() == 3)?;
    println!("   pod1c → {vip}: {with}");
    Ok(())
}

fn break_the_rules(stage: &mut Stage) -> Result<(), String> {
    let (vip, from) = (stage::NGINX.address(), stage.lab.pod("pod1c"));
    let node = stage.lab.node(1);
    println!("{}", command(node, "nft", &["flush", "ruleset"]));
    stage.agents[0]
        .wait_for("repaired rules that another process had changed", Duration::from_secs(10))
        .map_err(|e| e.to_string())?;
    for line in stage.agents[0].log().lines().iter().filter(|l| l.text.contains("rules")) {
        println!("   agent on node1: {}", line.text);
    }
    let after = Probe::tcp(from, vip).count(90).timeout(Duration::from_secs(2)).run();
    println!("   pod1c → {vip}: {after}");
    if after.answered() == 90 { Ok(()) } else { Err("requests failed after the repair".into()) }
}

/// Only what concerns nginx, out of everything the kernel holds.
fn show_elements(stage: &Stage) {
    let ip = stage::NGINX.ip;
    for (kind, name) in [("set", "cluster-ip-4"), ("map", "endpoints")] {
        println!("   $ nft list {kind} ip portway {name} | grep {ip}");
        let listing = command(stage.lab.node(1), "nft", &["list", kind, "ip", "portway", name]);
        for line in listing.lines().filter(|l| l.contains(ip)) {
            println!("   {}", line.trim().trim_start_matches("elements = { ").trim_end_matches([' ', '}']));
        }
    }
    note(
        "a frontend is in the set of its policy and size; VIP, protocol, port and a random index lead to a pod",
    );
    println!("{}", command(stage.lab.node(1), "nft", &["list", "chain", "ip", "portway", "cluster-ip-4"]));
    note("an index without a pod is no match, and the next rule tries again; the last one never misses");
}

/// The agents are started anew in another mode; its rules are complete before the others go.
fn switch_modes(stage: &mut Stage) -> Result<(), String> {
    let loads = [("pod1c", stage::NGINX.address()), ("pod2c", stage::NGINX.address())]
        .map(|(pod, to)| (pod, Load::start(stage.lab.pod(pod), to, 100.0)));
    stage.stop_agents()?;
    stage.start_agents("iptables")?;
    for agent in &mut stage.agents {
        agent
            .wait_for("removed leftovers of a previous proxy mode", Duration::from_secs(10))
            .map_err(|e| e.to_string())?;
    }
    for line in stage.agents[0].log().lines().iter().filter(|l| l.text.contains("leftovers")) {
        println!("   agent on node1: {}", line.text);
    }
    for (pod, load) in loads {
        let report = load.stop();
        println!("   meanwhile, from {pod}: {report}");
        if !report.is_clean() {
            return Err("requests failed while the mode was switched".into());
        }
    }
    println!("   node1$ iptables-save -t nat | grep default/nginx");
    let saved = command(stage.lab.node(1), "iptables-save", &["-t", "nat"]);
    for line in saved.lines().filter(|l| l.contains("default/nginx") && !l.contains("default/nginx-")) {
        println!("{line}");
    }
    Ok(())
}

fn wait(probe: impl Fn() -> Outcome, wanted: impl Fn(&Outcome) -> bool) -> Result<Outcome, String> {
    let attempt = || {
        let outcome = probe();
        if wanted(&outcome) { Ok(outcome) } else { Err(outcome.to_string()) }
    };
    portway_lab::eventually(Duration::from_secs(10), attempt).map_err(|e| e.to_string())
}
