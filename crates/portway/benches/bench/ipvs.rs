//! The ipvs mode: 2,000 Services of 10 endpoints each, beside the tools that would load the same, and what a lookup costs.
//!
//! Where the kernel has no ip_vs it is measured in user-mode Linux, by this program again: its figures are those of a slow
//! machine with one core, and only their ratios mean anything.

use crate::Options;
use crate::connections::through;
use crate::field::{Field, Mode, Setup, memory};
use crate::guest::in_a_guest;
use crate::iptables::{time_changes, timing};
use crate::lists::first_packet;
use crate::report::{Goal, Report};
use crate::sync::{median, settle};
use indicatif::ProgressBar;
use portway_lab::{Agent, Namespace, guest};
use std::fmt::Write as _;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The fewest and the most Services that a lookup is measured with.
const SIZES: [usize; 2] = [10, 2_000];

/// Here, or in a guest.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message("ipvs mode");
    let measured = if guest::is_needed() { elsewhere(options, report) } else { here(options, bar, report) };
    bar.inc(1);
    measured
}

fn elsewhere(options: &Options, report: &mut Report) -> Result<(), String> {
    let arguments = [
        "--only=ipvs".to_owned(),
        format!("--ipvs-services={}", options.ipvs_services),
        format!("--endpoints={}", options.endpoints),
        format!("--rounds={}", options.rounds),
        format!("--round-millis={}", options.round_millis),
    ];
    in_a_guest(&arguments, "ipvs", report)
}

fn here(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    // First, so that the kernel has loaded its modules by the time that syncs are measured.
    for mode in [Mode::Ipvs, Mode::IptablesLegacy] {
        for size in SIZES {
            bar.set_message(format!("connections in mode {}, {size} Services", mode.name()));
            lookup(options, mode, size, report)?;
        }
        flatness(mode, report);
    }
    syncs(options, bar, report)
}

/// The first sync and single changes.
fn syncs(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    let size = options.ipvs_services;
    bar.set_message(format!("ipvs: {size} Services"));
    let field = Field::new(Setup { mode: Mode::Ipvs, ..Setup::new(options.endpoints) })?;
    field.fill(0, size);
    let agent = field.start_agent()?;
    settle(&field)?;
    let sync = timing(&field, "full", "sum").ok_or("no metrics")?;
    let times = timing(&field, "full", "count").unwrap_or(f64::NAN);
    report.judge("ipvs_full_syncs", "ipvs: full syncs it took", times, "", Goal::AtMost(1.0));
    report.add("ipvs_sync_seconds", format!("ipvs: first sync of {size} Services"), sync, "s");

    bar.set_message("ipvs: loading the same with ipvsadm, ipset and ip");
    let loaded = yardstick(&field, report)?;
    let what = "ipvs: first sync against those three together";
    report.judge("ipvs_sync_ratio", what, sync / loaded, "×", Goal::AtMost(0.5));

    bar.set_message("ipvs: one endpoint changed");
    let change = time_changes(options, &field, size)?;
    report.add("ipvs_change_ms", "ipvs: one endpoint changed", change * 1e3, "ms");
    let what = "ipvs: a change against the first sync";
    report.judge("ipvs_change_ratio", what, change / sync, "×", Goal::AtMost(0.01));
    let messages = messages(&agent).ok_or("the agent does not say how many messages it sent")?;
    let what = "ipvs: netlink messages for one endpoint changed, at most";
    report.judge("ipvs_change_messages", what, messages, "", Goal::AtMost(5.0));
    if let Some((now, peak)) = memory(agent.id()) {
        report.add("ipvs_rss_mb", "ipvs: resident memory of the agent", now, "MB");
        report.add("ipvs_rss_peak_mb", "ipvs: resident memory at its peak", peak, "MB");
    }
    if options.log {
        bar.suspend(|| println!("{}", agent.log()));
    }
    Ok(())
}

/// The most messages that a change took, by the agent's log.
fn messages(agent: &Agent) -> Option<f64> {
    let log = agent.log().to_string();
    let changes = log.lines().filter(|l| l.contains("synced family=IPv4") && l.contains("full=false"));
    let numbers = changes.filter_map(|l| l.split("messages=").nth(1)?.split(' ').next()?.parse().ok());
    numbers.max_by(f64::total_cmp)
}

/// What the tools take to load what the node has.
fn yardstick(field: &Field, report: &mut Report) -> Result<f64, String> {
    let node = field.lab.node(1).namespace();
    let servers = output(node, "ipvsadm", &["-S", "-n"])?;
    let sets = output(node, "ipset", &["save"])?;
    let mut addresses = String::new();
    for line in output(node, "ip", &["-o", "-4", "address", "show", "kube-ipvs0"])?.lines() {
        let ip = line.split_whitespace().nth(3).ok_or("an address")?;
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
        let what = format!("{program} {} of the same", arguments.join(" "));
        report.add(&format!("load_{program}"), what, took, "s");
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

/// What a connection costs with so many Services.
fn lookup(options: &Options, mode: Mode, size: usize, report: &mut Report) -> Result<(), String> {
    let field = Field::new(Setup { mode, real_after: size / 2, ..Setup::new(1) })?;
    field.fill(0, size);
    let _agent = field.start_agent()?;
    settle(&field)?;
    // Not beside connections straight to the pod: to ipvs, those from a port that it remembers are the Service's.
    let rate = through(options, &field)?;
    let latency = field.lab.pod("pod1a").namespace().run(|| first_packet(field.vip(0)));
    let name = mode.name();
    let row = |what: &str| format!("{what}, {name}, {size} Services (in this kernel)");
    report.add(&format!("uml_rate_{name}_{size}"), row("connections per second"), rate, "/s");
    report.add(&format!("uml_latency_{name}_{size}"), row("to connect"), latency, "µs");
    Ok(())
}

/// What many cost, against few.
fn flatness(mode: Mode, report: &mut Report) {
    let name = mode.name();
    let of = |size: usize| report.get(&format!("uml_latency_{name}_{size}")).unwrap_or(f64::NAN);
    let ratio = of(SIZES[1]) / of(SIZES[0]);
    let what = format!("to connect, {name}: {} Services against {}", SIZES[1], SIZES[0]);
    match mode {
        Mode::Ipvs => report.judge("ipvs_flat", what, ratio, "×", Goal::AtMost(1.2)),
        _ => report.add(&format!("{name}_flat"), what, ratio, "×"),
    }
}
