//! The userspace mode against HAProxy in TCP mode: the same node, the same pods behind both, turn by turn.
//!
//! Both are processes in the node's namespace; the client is a pod of the same node, so that a byte takes the same path through
//! either. On a machine with few cores they share these with clients and servers, which is why the ratios count.

mod forwarder;
mod haproxy;
mod idle;
mod pods;
mod requests;
mod stage;
mod throughput;
mod udp;

use crate::Options;
use crate::report::Report;
use indicatif::ProgressBar;
use portway_lab::guest;
use stage::{Contender, Stage};
use std::io;
use std::thread;
use std::time::Duration;

/// Steps of the progress bar.
pub(crate) const STEPS: usize = 5;

/// All measurements, on one setup.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message("userspace: setting up");
    let stage = Stage::build(options)?;
    let say = |what: &str| bar.set_message(format!("userspace: {what}"));

    // First, while neither process has memory left over from other work.
    say(&format!("{} idle connections", options.idle_connections));
    if stage.connections < options.idle_connections && !guest::is_inside() {
        idle::elsewhere(options, report)?;
    } else {
        idle::measure(&stage, report)?;
    }
    bar.inc(1);
    for connections in [1, 64] {
        say(&format!("bytes through {connections} at a time"));
        throughput::measure(options, &stage, connections, report)?;
        bar.inc(1);
    }
    say("new connections");
    requests::measure(options, &stage, report)?;
    bar.inc(1);
    say("datagrams");
    udp::measure(options, &stage, report)?;
    bar.inc(1);
    if options.log {
        bar.suspend(|| println!("{}\n{}", stage.agent.log(), stage.haproxy.log()));
    }
    Ok(())
}

/// Idle connections only.
pub(crate) fn idle(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message(format!("userspace: {} idle connections", options.idle_connections));
    let stage = Stage::build(options)?;
    idle::measure(&stage, report)?;
    bar.inc(1);
    Ok(())
}

/// Rounds of two sides in turns, so that other load of the machine affects both alike; all but the first, which warms
/// caches.
fn alternate<T>(
    options: &Options,
    what: &str,
    sides: [&Contender; 2],
    round: impl Fn(&Contender, Duration) -> io::Result<T>,
) -> Result<[Vec<T>; 2], String> {
    let length = Duration::from_millis(options.round_millis);
    let mut rounds = [Vec::new(), Vec::new()];
    for n in 0..=options.rounds {
        for (side, seen) in sides.iter().zip(&mut rounds) {
            let result =
                round(side, length).map_err(|e| format!("{what} through {}, round {n}: {e}", side.name))?;
            if n > 0 {
                seen.push(result);
            }
        }
    }
    Ok(rounds)
}

/// Runs so many clients at once, in the namespace of the calling thread; returns the sum of their counts.
fn together(clients: usize, client: impl Fn(usize) -> io::Result<u64> + Sync) -> io::Result<u64> {
    let client = &client;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|n| scope.spawn(move || client(n))).collect();
        // A panic there is a panic here.
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum()
    })
}
