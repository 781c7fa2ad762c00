//! `make demo`: three Services, from their manifests to the packets, on two nodes made of network namespaces.

mod cluster;

use cluster::{Cluster, command, heading, note};
use portway_lab::{Load, Outcome, Probe};
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
    heading("Two nodes with three pods each and an external client, as network namespaces");
    let mut cluster = Cluster::build()?;
    cluster.describe();

    heading("Three Services, as YAML in a directory that both agents watch");
    cluster.apply_services()?;

    heading("One agent on each node");
    cluster.start_agents("nftables")?;

    heading("Requests are balanced over the pods");
    cluster.show_requests()?;

    heading("An endpoint is removed and added again");
    change_endpoints(&cluster)?;

    heading("Another process flushes all rules; the agent restores them");
    flush_rules(&mut cluster)?;

    heading("The rules of a Service: elements of a set and a map");
    show_elements(&cluster);

    heading("The proxy mode changes from nftables to iptables under load");
    switch_modes(&mut cluster)?;

    heading("Cleanup");
    cluster.tear_down()
}

/// Removes `pod2a` from the endpoints of nginx and adds it again; requests go to the current endpoints.
fn change_endpoints(cluster: &Cluster) -> Result<(), String> {
    let (vip, from) = (cluster::NGINX.address(), cluster.lab.pod("pod1c"));
    let count = || Probe::tcp(from, vip).count(90).timeout(Duration::from_secs(2)).run();
    note("pod2a is removed from nginx's EndpointSlice");
    cluster.apply_endpoints(&cluster::NGINX, &["pod1a", "pod1b"])?;
    let without = wait(count, |o| o.answers.len() == 2)?;
    println!("   pod1c → {vip}: {without}");
    note("pod2a is added again");
    cluster.apply_endpoints(&cluster::NGINX, cluster::NGINX.pods)?;
    let with = wait(count, |o| o.answers.len() == 3)?;
    println!("   pod1c → {vip}: {with}");
    Ok(())
}

fn flush_rules(cluster: &mut Cluster) -> Result<(), String> {
    let (vip, from) = (cluster::NGINX.address(), cluster.lab.pod("pod1c"));
    let node = cluster.lab.node(1);
    println!("{}", command(node, "nft", &["flush", "ruleset"]));
    cluster.agents[0]
        .wait_for("repaired rules that another process had changed", Duration::from_secs(10))
        .map_err(|e| e.to_string())?;
    for line in cluster.agents[0].log().lines().iter().filter(|l| l.text.contains("rules")) {
        println!("   agent on node1: {}", line.text);
    }
    let after = Probe::tcp(from, vip).count(90).timeout(Duration::from_secs(2)).run();
    println!("   pod1c → {vip}: {after}");
    if after.answered() == 90 { Ok(()) } else { Err("requests failed after the repair".into()) }
}

/// Prints the set and map elements of nginx, and the chain that uses them.
fn show_elements(cluster: &Cluster) {
    let ip = cluster::NGINX.ip;
    for (kind, name) in [("set", "cluster-ip-4"), ("map", "endpoints")] {
        println!("   $ nft list {kind} ip portway {name} | grep {ip}");
        let listing = command(cluster.lab.node(1), "nft", &["list", kind, "ip", "portway", name]);
        for line in listing.lines().filter(|l| l.contains(ip)) {
            println!("   {}", line.trim().trim_start_matches("elements = { ").trim_end_matches([' ', '}']));
        }
    }
    note(
        "a frontend is in the set of its policy and size; the map is keyed by VIP, protocol, port and a random index",
    );
    println!("{}", command(cluster.lab.node(1), "nft", &["list", "chain", "ip", "portway", "cluster-ip-4"]));
    note(
        "an index without an endpoint does not match, and the next rule draws again; the last rule draws from indices in use",
    );
}

/// Restarts the agents in another mode. The rules of the new mode are complete before those of the old one are removed.
fn switch_modes(cluster: &mut Cluster) -> Result<(), String> {
    let loads = [("pod1c", cluster::NGINX.address()), ("pod2c", cluster::NGINX.address())]
        .map(|(pod, to)| (pod, Load::start(cluster.lab.pod(pod), to, 100.0)));
    cluster.stop_agents()?;
    cluster.start_agents("iptables")?;
    for agent in &mut cluster.agents {
        agent
            .wait_for("removed leftovers of a previous proxy mode", Duration::from_secs(10))
            .map_err(|e| e.to_string())?;
    }
    for line in cluster.agents[0].log().lines().iter().filter(|l| l.text.contains("leftovers")) {
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
    let saved = command(cluster.lab.node(1), "iptables-save", &["-t", "nat"]);
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
