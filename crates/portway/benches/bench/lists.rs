//! The cost of a new connection by the number of Services: iptables evaluates its rules one by one.
//!
//! The Service under test is in the middle of the list, for an average position.

use crate::Options;
use crate::cluster::{Cluster, Mode, Setup};
use crate::connections::compare;
use crate::plot::Plot;
use crate::report::Report;
use crate::sync::{median, wait_for_first_sync};
use indicatif::ProgressBar;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// How many connections are timed for the median.
const SAMPLES: usize = 2000;

/// All modes at all sizes, and two plots.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    for size in &options.lists {
        for mode in Mode::COMPARED {
            let name = mode.name();
            bar.set_message(format!("connections in mode {name}, {size} Services"));
            // A packet passes one rule for each Service, whatever the number of endpoints: one endpoint each is enough.
            let cluster = Cluster::new(Setup { mode, position: size / 2, ..Setup::new(1) })?;
            cluster.fill(0, *size);
            let _agent = cluster.start_agent()?;
            wait_for_first_sync(&cluster)?;
            let (rate, direct) = compare(options, &cluster)?;
            let pod = SocketAddr::new(cluster.lab.pod("pod1b").ipv4().into(), crate::cluster::PORT);
            let from = cluster.lab.pod("pod1a").namespace();
            let (latency, direct_latency) = from.run(|| (first_packet(cluster.vip(0)), first_packet(pod)));
            let label = format!("connections per second, {name}, {size} Services");
            report.add(&format!("rate_{name}_{size}"), label, rate, "/s");
            let label = format!("to connect, {name}, {size} Services");
            report.add(&format!("latency_{name}_{size}"), label, latency, "µs");
            // With iptables, a connection that is not to a Service passes all rules.
            let label = format!("connections per second straight to the pod, {name}, {size} Services");
            report.add(&format!("rate_direct-{name}_{size}"), label, direct, "/s");
            let label = format!("to connect straight to the pod, {name}, {size} Services");
            report.add(&format!("latency_direct-{name}_{size}"), label, direct_latency, "µs");
            bar.inc(1);
        }
    }
    plots(options, report).map_err(|e| format!("{}: {e}", options.plots.display()))
}

/// The median time to connect, in microseconds.
pub(crate) fn first_packet(to: SocketAddr) -> f64 {
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let started = Instant::now();
        let connected = TcpStream::connect(to);
        let took = started.elapsed();
        if connected.is_ok() {
            times.push(took.as_secs_f64() * 1e6);
        }
    }
    median(times)
}

fn plots(options: &Options, report: &Report) -> std::io::Result<()> {
    std::fs::create_dir_all(&options.plots)?;
    for (key, title, unit) in [
        ("rate", "New connections per second through one Service of many", "connections per second"),
        ("latency", "Time to connect through one Service of many", "µs"),
    ] {
        let mut plot = Plot::new(title, "Services", unit);
        plot.line("direct", report.points(&format!("{key}_direct-nftables"), &options.lists));
        for name in Mode::COMPARED.map(Mode::name) {
            plot.line(name, report.points(&format!("{key}_{name}"), &options.lists));
        }
        std::fs::write(options.plots.join(format!("{key}.svg")), plot.to_string())?;
    }
    Ok(())
}
