//! The iptables mode in both variants, by default with 2,000 Services with node ports and 10 endpoints each.

use crate::Options;
use crate::cluster::{Cluster, Mode, Setup, memory};
use crate::report::{Goal, Report};
use crate::sync::{WAIT_TIMEOUT, median, wait_for_first_sync};
use indicatif::ProgressBar;
use portway_lab::{Namespace, eventually};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// How many single changes are timed; a change of legacy tables takes half a second.
const CHANGES: usize = 20;

/// Measures both variants.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    for mode in [Mode::IptablesNft, Mode::IptablesLegacy] {
        variant(options, mode, bar, report)?;
        bar.inc(1);
    }
    Ok(())
}

fn variant(options: &Options, mode: Mode, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    let (size, name) = (options.iptables_services, mode.name());
    bar.set_message(format!("{name}: {size} Services with node ports"));
    let cluster = Cluster::new(Setup { mode, node_ports: true, ..Setup::new(options.endpoints) })?;
    cluster.fill(0, size);
    let agent = cluster.start_agent()?;
    wait_for_first_sync(&cluster)?;
    let sync = timing(&cluster, "full", "sum").ok_or("no metrics")?;
    let times = timing(&cluster, "full", "count").unwrap_or(f64::NAN);
    report.add_with_goal(
        &format!("{name}_full_syncs"),
        format!("{name}: full syncs it took"),
        times,
        "",
        Goal::AtMost(1.0),
    );
    let label = format!("{name}: first sync of {size} Services with node ports");
    report.add(&format!("{name}_sync_seconds"), label, sync, "s");

    bar.set_message(format!("{name}: loading the same with {name}-restore"));
    let saved = save(&cluster, name)?;
    let loaded = load_times(name, &saved)?;
    report.add(&format!("{name}_restore_seconds"), format!("{name}-restore of the same"), loaded, "s");
    let label = format!("{name}: first sync against {name}-restore");
    report.add_with_goal(&format!("{name}_sync_ratio"), label, sync / loaded, "×", Goal::AtMost(1.3));

    bar.set_message(format!("{name}: one endpoint changed"));
    let change = time_changes(options, &cluster, size)?;
    report.add(&format!("{name}_change_seconds"), format!("{name}: one endpoint changed"), change, "s");
    match mode {
        Mode::IptablesLegacy => {
            let bare = bare_change(name, &saved)?;
            report.add(&format!("{name}_bare_change"), format!("{name}-restore of such a change"), bare, "s");
            let label = format!("{name}: a change against {name}-restore of such a one");
            report.add_with_goal(
                &format!("{name}_change_ratio"),
                label,
                change / bare,
                "×",
                Goal::AtMost(1.2),
            );
        }
        _ => {
            let label = format!("{name}: a change against the first sync");
            report.add_with_goal(
                &format!("{name}_change_ratio"),
                label,
                change / sync,
                "×",
                Goal::AtMost(0.1),
            );
        }
    }
    if let Some((now, peak)) = memory(agent.id()) {
        let label = format!("{name}: resident memory of the agent");
        report.add_with_goal(&format!("{name}_rss_mb"), label, now, "MB", Goal::AtMost(25.0));
        let label = format!("{name}: resident memory at its peak");
        report.add_with_goal(&format!("{name}_rss_peak_mb"), label, peak, "MB", Goal::AtMost(25.0));
    }
    if options.log {
        bar.suspend(|| println!("{}", agent.log()));
    }
    Ok(())
}

pub(crate) fn timing(cluster: &Cluster, kind: &str, suffix: &str) -> Option<f64> {
    cluster
        .metric(&format!("kubeproxy_sync_{kind}_proxy_rules_duration_seconds_{suffix}{{ip_family=\"IPv4\"}}"))
}

/// The median duration of a partial sync from the agent's metrics: rendering, the tool, and the kernel.
pub(crate) fn time_changes(options: &Options, cluster: &Cluster, size: usize) -> Result<f64, String> {
    let mut times = Vec::new();
    for i in 0..CHANGES {
        let read = || Some((timing(cluster, "partial", "count")?, timing(cluster, "partial", "sum")?));
        let before = read().ok_or("no metrics")?;
        let n = 1 + (i * 7919) % (size - 1);
        cluster.api.apply(cluster.slice(n, i + 1, options.endpoints));
        let after =
            eventually(WAIT_TIMEOUT, || read().filter(|now| now.0 > before.0).ok_or("no partial sync yet"));
        let after = after.map_err(|e| e.to_string())?;
        times.push((after.1 - before.1) / (after.0 - before.0));
    }
    Ok(median(times))
}

fn save(cluster: &Cluster, tool: &str) -> Result<String, String> {
    let mut command = Command::new(format!("{tool}-save"));
    let output = cluster.lab.node(1).namespace().run(|| command.output()).map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a script in a namespace; returns the seconds that it took.
fn load(namespace: &Namespace, tool: &str, arguments: &[&str], script: &str) -> Result<f64, String> {
    let mut command = Command::new(format!("{tool}-restore"));
    command.args(arguments).stdin(Stdio::piped());
    let started = Instant::now();
    let status = namespace.run(|| -> std::io::Result<_> {
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(script.as_bytes())?;
        }
        child.wait()
    });
    match status {
        Ok(status) if status.success() => Ok(started.elapsed().as_secs_f64()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(e) => Err(format!("{command:?}: {e}")),
    }
}

/// The median time that the tool alone takes for all rules, in new namespaces.
fn load_times(tool: &str, saved: &str) -> Result<f64, String> {
    // nfacct counters do not exist in a new namespace.
    let script: String = saved.lines().filter(|l| !l.contains("nfacct")).map(|l| format!("{l}\n")).collect();
    let mut times = Vec::new();
    for round in 0..3 {
        let scratch = Namespace::new(&format!("restore{round}")).map_err(|e| e.to_string())?;
        times.push(load(&scratch, tool, &[], &script)?);
    }
    Ok(median(times))
}

/// The median time that the tool alone takes to replace one chain and add another.
fn bare_change(tool: &str, saved: &str) -> Result<f64, String> {
    let script: String = saved.lines().filter(|l| !l.contains("nfacct")).map(|l| format!("{l}\n")).collect();
    let scratch = Namespace::new("change").map_err(|e| e.to_string())?;
    load(&scratch, tool, &[], &script)?;
    let chain = saved.lines().find_map(|l| l.strip_prefix(":KUBE-SVC-")).and_then(|l| l.split(' ').next());
    let chain = format!("KUBE-SVC-{}", chain.ok_or("no KUBE-SVC- chain")?);
    let rules: String =
        saved.lines().filter(|l| l.starts_with(&format!("-A {chain} "))).map(|l| format!("{l}\n")).collect();
    let mut times = Vec::new();
    for round in 0..CHANGES {
        let new = format!("KUBE-SEP-AAAAAAAAAAAAAA{round:02}");
        let change = format!(
            "*nat\n:{chain} - [0:0]\n:{new} - [0:0]\n{rules}-A {new} -p tcp -m tcp -j DNAT --to-destination 10.9.9.9:80\nCOMMIT\n"
        );
        times.push(load(&scratch, tool, &["--noflush"], &change)?);
    }
    Ok(median(times))
}
