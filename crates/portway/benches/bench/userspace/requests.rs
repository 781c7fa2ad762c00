//! Connections per second: each transports a short request and a short answer, and is closed.
//!
//! Several clients run at once, each with one connection at a time. A round has fewer connections than a client has
//! ports, and the lab allows ports to be reused after a second; no connection may fail.

use super::pods::SMALL;
use super::testbed::Testbed;
use super::{alternate, together};
use crate::Options;
use crate::connections::best;
use crate::report::{Goal, Report};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The number of clients.
const CLIENTS: usize = 8;
/// The time limit for an answer.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn measure(options: &Options, testbed: &Testbed, report: &mut Report) -> Result<(), String> {
    let proxies = [&testbed.portway(), &testbed.haproxy()];
    let rounds = alternate(options, "connections", proxies, |proxy, length| {
        testbed.client().run(|| rate(proxy.at(SMALL), length))
    })?;
    let rates = rounds.map(best);
    for (proxy, rate) in proxies.iter().zip(rates) {
        let label = format!("userspace: connections per second, {}", proxy.name);
        report.add(&format!("userspace_connections_{}", proxy.name), label, rate, "/s");
    }
    let label = "userspace: connections per second against HAProxy";
    report.add_with_goal("userspace_connections_ratio", label, rates[0] / rates[1], "×", Goal::AtLeast(0.8));
    Ok(())
}

fn rate(to: SocketAddr, length: Duration) -> io::Result<f64> {
    let started = Instant::now();
    let asked = together(CLIENTS, |_| ask(to, started + length))?;
    Ok(asked as f64 / started.elapsed().as_secs_f64())
}

/// Makes one request after the other, each on a new connection; returns their number.
fn ask(to: SocketAddr, until: Instant) -> io::Result<u64> {
    let mut count = 0;
    let mut answer = [0; 256];
    while Instant::now() < until {
        let mut stream = TcpStream::connect_timeout(&to, WAIT_TIMEOUT)?;
        stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
        stream.write_all(b"question\n")?;
        if stream.read(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        count += 1;
    }
    Ok(count)
}
