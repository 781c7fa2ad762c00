//! The duration of the first sync and of single changes.

use crate::Options;
use crate::cluster::{Cluster, Setup, cpu, memory};
use crate::report::{Goal, Report};
use indicatif::ProgressBar;
use portway_lab::{Agent, eventually};
use portway_netlink::nft::Monitor;
use std::net::TcpStream;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time limit for a condition.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Measures the first sync at full size, its memory, single changes, and steady changes.
pub(crate) fn first(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    let size = options.services;
    bar.set_message(format!("filling an API server with {size} Services"));
    let cluster = Cluster::new(Setup::new(options.endpoints))?;
    cluster.fill(0, size);
    bar.inc(1);

    bar.set_message("starting the agent");
    let agent = first_packet(&cluster, report)?;
    wait_for_first_sync(&cluster)?;
    let metric = |suffix: &str| {
        let name = format!("kubeproxy_sync_full_proxy_rules_duration_seconds_{suffix}{{ip_family=\"IPv4\"}}");
        cluster.metric(&name).unwrap_or(f64::NAN)
    };
    let sync = metric("sum");
    // With a second full sync the sum would not be the duration of the first one.
    report.add_with_goal("full_syncs", "full syncs it took", metric("count"), "", Goal::AtMost(1.0));
    report.add_with_goal(
        "sync_seconds",
        format!("first sync of {size} Services, kernel included"),
        sync,
        "s",
        Goal::AtMost(0.5),
    );
    if let Some((now, peak)) = memory(agent.id()) {
        report.add_with_goal("rss_mb", "resident memory of the agent", now, "MB", Goal::AtMost(40.0));
        report.add_with_goal("rss_peak_mb", "resident memory at its peak", peak, "MB", Goal::AtMost(60.0));
    }
    bar.inc(1);

    bar.set_message("loading the same with nft -f");
    let nft = nft_seconds(&cluster, report)?;
    report.add_with_goal(
        "sync_vs_nft",
        "first sync against nft -f of the same",
        sync / nft,
        "×",
        Goal::AtMost(0.2),
    );
    bar.inc(1);

    time_changes(options, &cluster, size, bar, report)?;
    bar.inc(1);
    churn(options, &cluster, &agent, bar, report)?;
    bar.inc(1);
    crate::connections::many_services(options, &cluster, bar, report)?;
    bar.inc(1);
    if options.log {
        bar.suspend(|| println!("{}", agent.log()));
    }
    Ok(())
}

/// Measures single changes at another size.
pub(crate) fn change_at(
    options: &Options,
    size: usize,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    bar.set_message(format!("filling an API server with {size} Services"));
    let cluster = Cluster::new(Setup::new(options.endpoints))?;
    cluster.fill(0, size);
    let _agent = cluster.start_agent()?;
    wait_for_first_sync(&cluster)?;
    time_changes(options, &cluster, size, bar, report)?;
    bar.inc(1);
    Ok(())
}

/// Starts the agent, and measures the time to the first connection through a VIP.
fn first_packet(cluster: &Cluster, report: &mut Report) -> Result<Agent, String> {
    let to = cluster.vip(0);
    let started = Instant::now();
    let agent = cluster.start_agent()?;
    let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(20)).map(drop);
    let reached = cluster.lab.pod("pod1a").namespace().run(|| eventually(WAIT_TIMEOUT, connect));
    reached.map_err(|e| format!("no connection to the VIP: {e}\n{}", agent.log()))?;
    let took = started.elapsed().as_secs_f64();
    report.add_with_goal(
        "first_packet_seconds",
        "from exec to the first packet through a VIP",
        took,
        "s",
        Goal::AtMost(1.2),
    );
    Ok(agent)
}

/// Waits for the first full sync.
pub(crate) fn wait_for_first_sync(cluster: &Cluster) -> Result<(), String> {
    let name = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    let synced = || cluster.metric(name).filter(|n| *n >= 1.0).ok_or("no sync yet");
    eventually(WAIT_TIMEOUT, synced).map_err(|e| e.to_string())?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

/// Loads the agent's table with `nft -f` into a new namespace; returns the median seconds.
fn nft_seconds(cluster: &Cluster, report: &mut Report) -> Result<f64, String> {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.nft", std::process::id()));
    let run = |namespace: &portway_lab::Namespace, arguments: &[&str]| -> Result<Vec<u8>, String> {
        let output = namespace
            .run(|| Command::new("nft").args(arguments).output())
            .map_err(|e| format!("nft: {e}"))?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into())
        }
    };
    let text = run(cluster.lab.node(1).namespace(), &["list", "table", "ip", "portway"])?;
    std::fs::write(&path, text).map_err(|e| e.to_string())?;
    let mut times = Vec::new();
    for round in 0..3 {
        let scratch = portway_lab::Namespace::new(&format!("nft{round}")).map_err(|e| e.to_string())?;
        let started = Instant::now();
        run(&scratch, &["-f", &path.display().to_string()])?;
        times.push(started.elapsed().as_secs_f64());
    }
    std::fs::remove_file(&path).ok();
    let median = median(times);
    report.add("nft_seconds", "nft -f of the same table", median, "s");
    Ok(median)
}

/// Measures the time from a change at the API server to the kernel's announcement of the transaction.
fn time_changes(
    options: &Options,
    cluster: &Cluster,
    size: usize,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    let (sender, commits) = mpsc::channel();
    let mut monitor =
        cluster.lab.node(1).namespace().run(|| Monitor::open(&[])).map_err(|e| e.to_string())?;
    std::thread::spawn(
        move || {
            while monitor.wait(&["portway"]).is_ok() && sender.send(Instant::now()).is_ok() {}
        },
    );
    for kind in ["replaced", "scaled"] {
        bar.set_message(format!("one endpoint {kind} among {size} Services"));
        let mut times = Vec::new();
        for i in 0..options.changes {
            let n = 1 + (i * 7919) % (size - 1);
            let endpoints = if kind == "scaled" { options.endpoints - 1 } else { options.endpoints };
            let slice = cluster.slice(n, i + 1, endpoints);
            while commits.try_recv().is_ok() {}
            let started = Instant::now();
            cluster.api.apply(slice);
            let done = commits.recv_timeout(WAIT_TIMEOUT).map_err(|_| "no transaction followed a change")?;
            times.push(done.duration_since(started).as_secs_f64() * 1000.0);
            std::thread::sleep(Duration::from_millis(20));
        }
        let label = format!("one endpoint {kind} among {size} Services, event to kernel");
        report.add_with_goal(&format!("change_{kind}_{size}"), label, median(times), "ms", Goal::AtMost(9.9));
    }
    Ok(())
}

/// Measures the CPU time of the agent while endpoints change at a steady rate.
fn churn(
    options: &Options,
    cluster: &Cluster,
    agent: &Agent,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    let total = options.churn_seconds * options.churn_rate;
    let before = cpu(agent.id()).ok_or("the agent has exited")?;
    let started = Instant::now();
    for i in 0..total {
        if i % options.churn_rate == 0 {
            bar.set_message(format!(
                "{} changes a second: {} s of {}",
                options.churn_rate,
                i / options.churn_rate,
                options.churn_seconds
            ));
        }
        let n = 1 + (i as usize * 104_729) % (options.services - 1);
        cluster.api.apply(cluster.slice(n, 100_000 + i as usize, options.endpoints));
        let due = started + Duration::from_secs_f64((i + 1) as f64 / options.churn_rate as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let used = cpu(agent.id()).ok_or("the agent has exited")? - before;
    let share = used / started.elapsed().as_secs_f64();
    let label = format!("CPU at {} changes a second for {} s", options.churn_rate, options.churn_seconds);
    report.add_with_goal("churn_cores", label, share, "core", Goal::AtMost(0.1));
    if let Some((now, _)) = memory(agent.id()) {
        report.add("rss_after_churn_mb", "resident memory after that", now, "MB");
    }
    Ok(())
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
