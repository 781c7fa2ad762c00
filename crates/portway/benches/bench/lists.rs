//! What a long list of Services costs a new connection: the seeds say that iptables walks it, rule by rule.
//!
//! The Service that is connected to is in the middle of the list, as one is on average.

use crate::Options;
use crate::connections::compare;
use crate::field::{Field, Mode, Setup};
use crate::plot::Plot;
use crate::report::Report;
use crate::sync::{median, settle};
use indicatif::ProgressBar;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// How many connections are timed for the median.
const SAMPLES: usize = 2000;

/// All modes at all sizes, and two plots.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    for size in &options.lists {
        for mode in Mode::ALL {
            let name = mode.name();
            bar.set_message(format!("connections in mode {name}, {size} Services"));
            // What is walked is one rule for each Service: one endpoint each is enough.
            let field = Field::new(Setup { mode, real_after: size / 2, ..Setup::new(1) })?;
            field.fill(0, *size);
            let _agent = field.start_agent()?;
            settle(&field)?;
            let (rate, straight) = compare(options, &field)?;
            let pod = SocketAddr::new(field.lab.pod("pod1b").ipv4().into(), crate::field::PORT);
            let from = field.lab.pod("pod1a").namespace();
            let (latency, straight_latency) = from.run(|| (first_packet(field.vip(0)), first_packet(pod)));
            let what = format!("connections per second, {name}, {size} Services");
            report.add(&format!("rate_{name}_{size}"), what, rate, "/s");
            let what = format!("to connect, {name}, {size} Services");
            report.add(&format!("latency_{name}_{size}"), what, latency, "µs");
            // With iptables, even a connection that is not to a Service walks the whole list.
            let what = format!("connections per second straight to the pod, {name}, {size} Services");
            report.add(&format!("rate_direct-{name}_{size}"), what, straight, "/s");
            let what = format!("to connect straight to the pod, {name}, {size} Services");
            report.add(&format!("latency_direct-{name}_{size}"), what, straight_latency, "µs");
            bar.inc(1);
        }
    }
    plots(options, report).map_err(|e| format!("{}: {e}", options.plots.display()))
}

/// The time from the first packet of a connection to the answer, in microseconds.
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
        for name in Mode::ALL.map(Mode::name) {
            plot.line(name, report.points(&format!("{key}_{name}"), &options.lists));
        }
        std::fs::write(options.plots.join(format!("{key}.svg")), plot.to_string())?;
    }
    Ok(())
}
