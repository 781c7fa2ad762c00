//! The ipvs mode, by default with 2,000 Services of 10 endpoints each: syncs compared with the tools that load the same
//! objects, and the cost of a lookup.
//!
//! If the kernel has no ip_vs, this program runs again in user-mode Linux. That is a slow machine with one core, so
//! only ratios of its figures are meaningful.

use crate::Options;
use crate::cluster::{Cluster, Mode, Setup, memory};
use crate::connections::rate_through_service;
use crate::guest::in_a_guest;
use crate::iptables::{time_changes, timing};
use crate::lists::first_packet;
use crate::report::{Goal, Report};
use crate::sync::{median, wait_for_first_sync};
use indicatif::ProgressBar;
use portway_lab::{Agent, Namespace, guest};
use std::fmt::Write as _;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The numbers of Services with which a lookup is measured.
const SIZES: [usize; 2] = [10, 2_000];

/// Measures on this kernel, or in a guest.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message("ipvs mode");
    let measured = if guest::is_needed() {
        measure_in_guest(options, report)
    } else {
        measure_here(options, bar, report)
    };
    bar.inc(1);
    measured
}

fn measure_in_guest(options: &Options, report: &mut Report) -> Result<(), String> {
    let arguments = [
        "--only=ipvs".to_owned(),
        format!("--ipvs-services={}", options.ipvs_services),
        format!("--endpoints={}", options.endpoints),
        format!("--rounds={}", options.rounds),
        format!("--round-millis={}", options.round_millis),
    ];
    in_a_guest(&arguments, "ipvs", report)
}

fn measure_here(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    // Lookups first, so that the kernel has loaded its modules when syncs are measured.
    for mode in [Mode::Ipvs, Mode::IptablesLegacy] {
        for size in SIZES {
            bar.set_message(format!("connections in mode {}, {size} Services", mode.name()));
            lookup(options, mode, size, report)?;
        }
        latency_ratio(mode, report);
    }
    syncs(options, bar, report)
}

/// Measures the first sync and single changes.
fn syncs(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    let size = options.ipvs_services;
    bar.set_message(format!("ipvs: {size} Services"));
    let cluster = Cluster::new(Setup { mode: Mode::Ipvs, ..Setup::new(options.endpoints) })?;
    cluster.fill(0, size);
    let agent = cluster.start_agent()?;
    wait_for_first_sync(&cluster)?;
    let sync = timing(&cluster, "full", "sum").ok_or("no metrics")?;
    let times = timing(&cluster, "full", "count").unwrap_or(f64::NAN);
    report.add_with_goal("ipvs_full_syncs", "ipvs: full syncs it took", times, "", Goal::AtMost(1.0));
    report.add("ipvs_sync_seconds", format!("ipvs: first sync of {size} Services"), sync, "s");

    bar.set_message("ipvs: loading the same with ipvsadm, ipset and ip");
    let loaded = tool_seconds(&cluster, report)?;
    let label = "ipvs: first sync against those three together";
    report.add_with_goal("ipvs_sync_ratio", label, sync / loaded, "×", Goal::AtMost(0.5));

    bar.set_message("ipvs: one endpoint changed");
    let change = time_changes(options, &cluster, size)?;
    report.add("ipvs_change_ms", "ipvs: one endpoint changed", change * 1e3, "ms");
    let label = "ipvs: a change against the first sync";
    report.add_with_goal("ipvs_change_ratio", label, change / sync, "×", Goal::AtMost(0.01));
    let messages = messages(&agent).ok_or("the agent does not log the number of messages")?;
    let label = "ipvs: netlink messages for one endpoint changed, at most";
    report.add_with_goal("ipvs_change_messages", label, messages, "", Goal::AtMost(5.0));
    if let Some((now, peak)) = memory(agent.id()) {
        report.add("ipvs_rss_mb", "ipvs: resident memory of the agent", now, "MB");
        report.add("ipvs_rss_peak_mb", "ipvs: resident memory at its peak", peak, "MB");
    }
    if options.log {
        bar.suspend(|| println!("{}", agent.log()));
    }
    Ok(())
}

/// The largest number of messages for a change, from the agent's log.
fn messages(agent: &Agent) -> Option<f64> {
    let log = agent.log().to_string();
    let changes = log.lines().filter(|l| l.contains("synced family=IPv4") && l.contains("full=false"));
    let numbers = changes.filter_map(|l| l.split("messages=").nth(1)?.split(' ').next()?.parse().ok());
    numbers.max_by(f64::total_cmp)
}

/// The time that the tools take to load the objects of the node.
fn tool_seconds(cluster: &Cluster, report: &mut Report) -> Result<f64, String> {
    let node = cluster.lab.node(1).namespace();
    let servers = output(node, "ipvsadm", &["-S", "-n"])?;
    let sets = output(node, "ipset", &["save"])?;
    let mut addresses = String::new();
    for line in output(node, "ip", &["-o", "-4", "address", "show", "kube-ipvs0"])?.lines() {
        let ip = line.split_whitespace().nth(3).ok_or("no address in the output of ip")?;
        // Writing into memory does not fail.
        writeln!(addresses, "address add {ip} dev kube-ipvs0").ok();
    }
    let loads: [(&str, &[&str], &str); 3] = [
        ("ipvsadm", &["-R"], &servers),
        ("ipset", &["restore"], &sets),
        ("ip", &["-batch", "-"], &addresses),
    ];
    let mut sum = 0.0;
    for (program, arguments, input) in loads {
        let mut times = Vec::new();
        for round in 0..3 {
            let scratch = Namespace::new(&format!("load{round}")).map_err(|e| e.to_string())?;
            output(&scratch, "ip", &["link", "set", "lo", "up"])?;
            output(&scratch, "ip", &["link", "add", "kube-ipvs0", "type", "dummy"])?;
            times.push(load(&scratch, program, arguments, input)?);
        }
        let took = median(times);
        let label = format!("{program} {} of the same", arguments.join(" "));
        report.add(&format!("load_{program}"), label, took, "s");
        sum += took;
    }
    Ok(sum)
}

fn output(namespace: &Namespace, program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    let output = namespace.run(|| command.args(arguments).output()).map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn load(namespace: &Namespace, program: &str, arguments: &[&str], input: &str) -> Result<f64, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    let started = Instant::now();
    let status = namespace.run(|| -> std::io::Result<_> {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait()
    });
    match status {
        Ok(status) if status.success() => Ok(started.elapsed().as_secs_f64()),
        other => Err(format!("{program} {arguments:?}: {other:?}")),
    }
}

/// Measures connections with a number of Services.
fn lookup(options: &Options, mode: Mode, size: usize, report: &mut Report) -> Result<(), String> {
    let cluster = Cluster::new(Setup { mode, position: size / 2, ..Setup::new(1) })?;
    cluster.fill(0, size);
    let _agent = cluster.start_agent()?;
    wait_for_first_sync(&cluster)?;
    // Direct connections to the pod are not measured meanwhile: ipvs would treat one from a port with an ipvs entry as
    // the Service's.
    let rate = rate_through_service(options, &cluster)?;
    let latency = cluster.lab.pod("pod1a").namespace().run(|| first_packet(cluster.vip(0)));
    let name = mode.name();
    let row = |label: &str| format!("{label}, {name}, {size} Services (in this kernel)");
    report.add(&format!("uml_rate_{name}_{size}"), row("connections per second"), rate, "/s");
    report.add(&format!("uml_latency_{name}_{size}"), row("to connect"), latency, "µs");
    Ok(())
}

/// The ratio of the latency with many Services to the latency with few.
fn latency_ratio(mode: Mode, report: &mut Report) {
    let name = mode.name();
    let of = |size: usize| report.get(&format!("uml_latency_{name}_{size}")).unwrap_or(f64::NAN);
    let ratio = of(SIZES[1]) / of(SIZES[0]);
    let label = format!("to connect, {name}: {} Services against {}", SIZES[1], SIZES[0]);
    match mode {
        Mode::Ipvs => report.add_with_goal("ipvs_flat", label, ratio, "×", Goal::AtMost(1.2)),
        _ => report.add(&format!("{name}_flat"), label, ratio, "×"),
    }
}
