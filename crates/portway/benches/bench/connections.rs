//! New connections per second: directly to a pod, through the only VIP, and through one VIP of many.
//!
//! Rounds to the pod and through the VIP alternate, so that other load of the machine affects both alike.

use crate::Options;
use crate::cluster::{Cluster, PORT, Setup};
use crate::report::{Goal, Report};
use indicatif::ProgressBar;
use portway_lab::{Namespace, eventually};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Measures with a single Service.
pub(crate) fn one_service(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message("connections through the only Service");
    let cluster = Cluster::new(Setup::new(options.endpoints))?;
    cluster.fill(0, 1);
    let _agent = cluster.start_agent()?;
    let (vip, direct) = compare(options, &cluster)?;
    report.add("connections_direct", "connections per second, straight to the pod", direct, "/s");
    report.add("connections_one", "connections per second, one Service", vip, "/s");
    report.add("connections_one_ratio", "one Service against direct", vip / direct, "×");
    bar.inc(1);
    Ok(())
}

/// Measures with `--services` Services.
pub(crate) fn many_services(
    options: &Options,
    cluster: &Cluster,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    bar.set_message("connections through one Service of many");
    let (vip, direct) = compare(options, cluster)?;
    let one = report.get("connections_one_ratio").unwrap_or(f64::NAN);
    report.add(
        "connections_many",
        format!("connections per second, {} Services", options.services),
        vip,
        "/s",
    );
    report.add_with_goal(
        "connections_vs_direct",
        "many Services against direct",
        vip / direct,
        "×",
        Goal::AtLeast(0.85),
    );
    // Both are relative to direct connections in the same rounds.
    report.add_with_goal(
        "connections_vs_one",
        "many Services against one",
        vip / direct / one,
        "×",
        Goal::AtLeast(0.95),
    );
    Ok(())
}

/// The best rates through the first Service and directly to its pod.
pub(crate) fn compare(options: &Options, cluster: &Cluster) -> Result<(f64, f64), String> {
    let vip = cluster.vip(0);
    let direct = SocketAddr::new(cluster.lab.pod("pod1b").ipv4().into(), PORT);
    let from = cluster.lab.pod("pod1a").namespace();
    let reachable = || TcpStream::connect_timeout(&vip, Duration::from_millis(50)).map(drop);
    from.run(|| eventually(Duration::from_secs(30), reachable)).map_err(|e| e.to_string())?;
    let (mut through_vip, mut directly) = (Vec::new(), Vec::new());
    let length = Duration::from_millis(options.round_millis);
    for round in 0..=options.rounds {
        let pair = from.run(|| (rate(vip, length), rate(direct, length)));
        // The first round warms caches.
        if round > 0 {
            through_vip.push(pair.0);
            directly.push(pair.1);
        }
    }
    Ok((best(through_vip), best(directly)))
}

/// Waits until the first Service answers; returns the best rate through it.
pub(crate) fn rate_through_service(options: &Options, cluster: &Cluster) -> Result<f64, String> {
    best_rate(options, cluster.lab.pod("pod1a").namespace(), cluster.vip(0))
}

/// Waits until a VIP answers; returns the best rate from a namespace through it.
pub(crate) fn best_rate(options: &Options, from: &Namespace, vip: SocketAddr) -> Result<f64, String> {
    let reachable = || TcpStream::connect_timeout(&vip, Duration::from_secs(1)).map(drop);
    from.run(|| eventually(Duration::from_secs(60), reachable)).map_err(|e| e.to_string())?;
    let length = Duration::from_millis(options.round_millis);
    let rounds = (0..=options.rounds).map(|_| from.run(|| rate(vip, length)));
    // The first round warms caches.
    Ok(best(rounds.skip(1).collect()))
}

/// Connections per second, one after the other, each until the server's greeting arrives.
fn rate(to: SocketAddr, length: Duration) -> f64 {
    let started = Instant::now();
    let mut count = 0u32;
    while started.elapsed() < length {
        let Ok(mut stream) = TcpStream::connect(to) else { continue };
        let mut greeting = [0; 64];
        count += u32::from(stream.read(&mut greeting).is_ok_and(|n| n > 0));
    }
    f64::from(count) / started.elapsed().as_secs_f64()
}

/// The highest value: other load only lowers the rate.
pub(crate) fn best(values: Vec<f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}
