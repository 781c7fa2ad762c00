//! The userspace mode against HAProxy in TCP mode: the same node, the same pods, in alternating rounds.
//!
//! Both proxies are processes in the node's namespace, and the client is a pod of the same node, so that bytes take the
//! same path through either. On a machine with few cores they share these with clients and servers, so only the ratios
//! are meaningful.

mod forwarder;
mod haproxy;
mod idle;
mod pods;
mod requests;
mod testbed;
mod throughput;
mod udp;

use crate::Options;
use crate::report::Report;
use indicatif::ProgressBar;
use portway_lab::guest;
use std::io;
use std::thread;
use std::time::Duration;
use testbed::{MeasuredProxy, Testbed};

/// Steps of the progress bar.
pub(crate) const STEPS: usize = 5;

/// Runs all measurements on one testbed.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message("userspace: setting up");
    let testbed = Testbed::build(options)?;
    let show = |step: &str| bar.set_message(format!("userspace: {step}"));

    // First, before either process has memory from other measurements.
    show(&format!("{} idle connections", options.idle_connections));
    if testbed.connections < options.idle_connections && !guest::is_inside() {
        idle::measure_in_guest(options, report)?;
    } else {
        idle::measure(&testbed, report)?;
    }
    bar.inc(1);
    for connections in [1, 64] {
        show(&format!("bytes through {connections} connections"));
        throughput::measure(options, &testbed, connections, report)?;
        bar.inc(1);
    }
    show("new connections");
    requests::measure(options, &testbed, report)?;
    bar.inc(1);
    show("datagrams");
    udp::measure(options, &testbed, report)?;
    bar.inc(1);
    if options.log {
        bar.suspend(|| println!("{}\n{}", testbed.agent.log(), testbed.haproxy.log()));
    }
    Ok(())
}

/// Measures idle connections only.
pub(crate) fn idle(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message(format!("userspace: {} idle connections", options.idle_connections));
    let testbed = Testbed::build(options)?;
    idle::measure(&testbed, report)?;
    bar.inc(1);
    Ok(())
}

/// Alternates rounds of two proxies, so that other load of the machine affects both alike. The first round warms caches
/// and is not returned.
fn alternate<T>(
    options: &Options,
    label: &str,
    proxies: [&MeasuredProxy; 2],
    round: impl Fn(&MeasuredProxy, Duration) -> io::Result<T>,
) -> Result<[Vec<T>; 2], String> {
    let length = Duration::from_millis(options.round_millis);
    let mut rounds = [Vec::new(), Vec::new()];
    for n in 0..=options.rounds {
        for (proxy, seen) in proxies.iter().zip(&mut rounds) {
            let result = round(proxy, length)
                .map_err(|e| format!("{label} through {}, round {n}: {e}", proxy.name))?;
            if n > 0 {
                seen.push(result);
            }
        }
    }
    Ok(rounds)
}

/// Runs a number of clients at once, in the namespace of the calling thread; returns the sum of their counts.
fn together(clients: usize, client: impl Fn(usize) -> io::Result<u64> + Sync) -> io::Result<u64> {
    let client = &client;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|n| scope.spawn(move || client(n))).collect();
        // Propagate a panic of a client.
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum()
    })
}
