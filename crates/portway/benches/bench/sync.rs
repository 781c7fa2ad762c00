//! How long it takes to program everything, and to change one thing.

use crate::Options;
use crate::field::{Field, Setup, cpu, memory};
use crate::report::{Goal, Report};
use indicatif::ProgressBar;
use portway_lab::{Agent, eventually};
use portway_netlink::nft::Monitor;
use std::net::TcpStream;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The first sync at full size, what it costs, one change, and a minute of changes.
pub(crate) fn first(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    let size = options.services;
    bar.set_message(format!("filling an API server with {size} Services"));
    let field = Field::new(Setup::new(options.endpoints))?;
    field.fill(0, size);
    bar.inc(1);

    bar.set_message("starting the agent");
    let agent = first_packet(&field, report)?;
    settle(&field)?;
    let metric = |what: &str| {
        let name = format!("kubeproxy_sync_full_proxy_rules_duration_seconds_{what}{{ip_family=\"IPv4\"}}");
        field.metric(&name).unwrap_or(f64::NAN)
    };
    let sync = metric("sum");
    // Another full sync would mean that the agent lost trust in what it had just done, and spoil the figure.
    report.judge("full_syncs", "full syncs it took", metric("count"), "", Goal::AtMost(1.0));
    report.judge(
        "sync_seconds",
        format!("first sync of {size} Services, kernel included"),
        sync,
        "s",
        Goal::AtMost(0.5),
    );
    if let Some((now, peak)) = memory(agent.id()) {
        report.judge("rss_mb", "resident memory of the agent", now, "MB", Goal::AtMost(40.0));
        report.judge("rss_peak_mb", "resident memory at its peak", peak, "MB", Goal::AtMost(60.0));
    }
    bar.inc(1);

    bar.set_message("loading the same with nft -f");
    let text = yardstick(&field, report)?;
    report.judge("sync_vs_nft", "first sync against nft -f of the same", sync / text, "×", Goal::AtMost(0.2));
    bar.inc(1);

    time_changes(options, &field, size, bar, report)?;
    bar.inc(1);
    churn(options, &field, &agent, bar, report)?;
    bar.inc(1);
    crate::connections::many_services(options, &field, bar, report)?;
    bar.inc(1);
    if options.log {
        bar.suspend(|| println!("{}", agent.log()));
    }
    Ok(())
}

/// One change at another size.
pub(crate) fn change_at(
    options: &Options,
    size: usize,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    bar.set_message(format!("filling an API server with {size} Services"));
    let field = Field::new(Setup::new(options.endpoints))?;
    field.fill(0, size);
    let _agent = field.start_agent()?;
    settle(&field)?;
    time_changes(options, &field, size, bar, report)?;
    bar.inc(1);
    Ok(())
}

/// From exec to the first packet through a VIP.
fn first_packet(field: &Field, report: &mut Report) -> Result<Agent, String> {
    let to = field.vip(0);
    let started = Instant::now();
    let agent = field.start_agent()?;
    let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(20)).map(drop);
    let reached = field.lab.pod("pod1a").namespace().run(|| eventually(PATIENCE, connect));
    reached.map_err(|e| format!("no packet came through: {e}\n{}", agent.log()))?;
    let took = started.elapsed().as_secs_f64();
    report.judge(
        "first_packet_seconds",
        "from exec to the first packet through a VIP",
        took,
        "s",
        Goal::AtMost(1.2),
    );
    Ok(agent)
}

pub(crate) fn settle(field: &Field) -> Result<(), String> {
    let name = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    let synced = || field.metric(name).filter(|n| *n >= 1.0).ok_or("no sync yet");
    eventually(PATIENCE, synced).map_err(|e| e.to_string())?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

/// Loads what the kernel now holds, as text, into a namespace of its own.
fn yardstick(field: &Field, report: &mut Report) -> Result<f64, String> {
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
    let text = run(field.lab.node(1).namespace(), &["list", "table", "ip", "portway"])?;
    std::fs::write(&path, text).map_err(|e| e.to_string())?;
    let mut times = Vec::new();
    for round in 0..3 {
        let scratch = portway_lab::Namespace::new(&format!("yardstick{round}")).map_err(|e| e.to_string())?;
        let started = Instant::now();
        run(&scratch, &["-f", &path.display().to_string()])?;
        times.push(started.elapsed().as_secs_f64());
    }
    std::fs::remove_file(&path).ok();
    let median = median(times);
    report.add("nft_seconds", "nft -f of the same table", median, "s");
    Ok(median)
}

/// From an event at the API server to the kernel's acknowledgement, seen from outside: the kernel announces the
/// transaction.
fn time_changes(
    options: &Options,
    field: &Field,
    size: usize,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    let (sender, commits) = mpsc::channel();
    let mut monitor = field.lab.node(1).namespace().run(|| Monitor::open(&[])).map_err(|e| e.to_string())?;
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
            let slice = field.slice(n, i + 1, endpoints);
            while commits.try_recv().is_ok() {}
            let started = Instant::now();
            field.api.apply(slice);
            let done = commits.recv_timeout(PATIENCE).map_err(|_| "a change never reached the kernel")?;
            times.push(done.duration_since(started).as_secs_f64() * 1000.0);
            std::thread::sleep(Duration::from_millis(20));
        }
        let what = format!("one endpoint {kind} among {size} Services, event to kernel");
        report.judge(&format!("change_{kind}_{size}"), what, median(times), "ms", Goal::AtMost(9.9));
    }
    Ok(())
}

/// Steady change, and how much of a core it takes.
fn churn(
    options: &Options,
    field: &Field,
    agent: &Agent,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    let total = options.churn_seconds * options.churn_rate;
    let before = cpu(agent.id()).ok_or("the agent is gone")?;
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
        field.api.apply(field.slice(n, 100_000 + i as usize, options.endpoints));
        let due = started + Duration::from_secs_f64((i + 1) as f64 / options.churn_rate as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let used = cpu(agent.id()).ok_or("the agent is gone")? - before;
    let share = used / started.elapsed().as_secs_f64();
    let what = format!("CPU at {} changes a second for {} s", options.churn_rate, options.churn_seconds);
    report.judge("churn_cores", what, share, "core", Goal::AtMost(0.1));
    if let Some((now, _)) = memory(agent.id()) {
        report.add("rss_after_churn_mb", "resident memory after that", now, "MB");
    }
    Ok(())
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
