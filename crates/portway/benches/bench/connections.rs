//! New connections per second: straight to a pod, through the only VIP, through one VIP of many.
//!
//! Rounds of the two sides alternate, so that what else the machine does hits both alike.

use crate::Options;
use crate::field::{Field, PORT, Setup};
use crate::report::{Goal, Report};
use indicatif::ProgressBar;
use portway_lab::eventually;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// With a single Service.
pub(crate) fn one_service(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    bar.set_message("connections through the only Service");
    let field = Field::new(Setup::new(options.endpoints))?;
    field.fill(0, 1);
    let _agent = field.start_agent()?;
    let (vip, direct) = compare(options, &field)?;
    report.add("connections_direct", "connections per second, straight to the pod", direct, "/s");
    report.add("connections_one", "connections per second, one Service", vip, "/s");
    report.add("connections_one_ratio", "one Service against direct", vip / direct, "×");
    bar.inc(1);
    Ok(())
}

/// With as many as there are.
pub(crate) fn many_services(
    options: &Options,
    field: &Field,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    bar.set_message("connections through one Service of many");
    let (vip, direct) = compare(options, field)?;
    let one = report.get("connections_one_ratio").unwrap_or(f64::NAN);
    report.add(
        "connections_many",
        format!("connections per second, {} Services", options.services),
        vip,
        "/s",
    );
    report.judge(
        "connections_vs_direct",
        "many Services against direct",
        vip / direct,
        "×",
        Goal::AtLeast(0.85),
    );
    // Both as shares of a direct connection in their own minutes.
    report.judge(
        "connections_vs_one",
        "many Services against one",
        vip / direct / one,
        "×",
        Goal::AtLeast(0.95),
    );
    Ok(())
}

pub(crate) fn compare(options: &Options, field: &Field) -> Result<(f64, f64), String> {
    let vip = field.vip(0);
    let direct = SocketAddr::new(field.lab.pod("pod1b").ipv4().into(), PORT);
    let from = field.lab.pod("pod1a").namespace();
    let reachable = || TcpStream::connect_timeout(&vip, Duration::from_millis(50)).map(drop);
    from.run(|| eventually(Duration::from_secs(30), reachable)).map_err(|e| e.to_string())?;
    let (mut through, mut straight) = (Vec::new(), Vec::new());
    let length = Duration::from_millis(options.round_millis);
    for round in 0..=options.rounds {
        let pair = from.run(|| (rate(vip, length), rate(direct, length)));
        // The first round warms caches.
        if round > 0 {
            through.push(pair.0);
            straight.push(pair.1);
        }
    }
    Ok((best(through), best(straight)))
}

/// Waits until a Service answers, then counts connections through it alone; the best round comes back.
pub(crate) fn through(options: &Options, field: &Field) -> Result<f64, String> {
    let vip = field.vip(0);
    let from = field.lab.pod("pod1a").namespace();
    let reachable = || TcpStream::connect_timeout(&vip, Duration::from_secs(1)).map(drop);
    from.run(|| eventually(Duration::from_secs(60), reachable)).map_err(|e| e.to_string())?;
    let length = Duration::from_millis(options.round_millis);
    let rounds = (0..=options.rounds).map(|_| from.run(|| rate(vip, length)));
    // The first round warms caches.
    Ok(best(rounds.skip(1).collect()))
}

/// Connections one after the other, each greeted by the server, for so long.
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

/// Noise only ever slows down, so the best round says most.
pub(crate) fn best(values: Vec<f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}
