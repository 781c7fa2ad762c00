//! Connections per second: each transports a short request and a short answer, and is closed.
//!
//! Several clients ask at once, one connection each. They are fewer in a round than a client has ports, and the lab
//! lets ports be used again after a second; none may fail.

use super::pods::SMALL;
use super::stage::Stage;
use super::{alternate, together};
use crate::Options;
use crate::connections::best;
use crate::report::{Goal, Report};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Clients that ask at once.
const CLIENTS: usize = 8;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn measure(options: &Options, stage: &Stage, report: &mut Report) -> Result<(), String> {
    let sides = [&stage.portway(), &stage.haproxy()];
    let rounds = alternate(options, "connections", sides, |side, length| {
        stage.client().run(|| rate(side.at(SMALL), length))
    })?;
    let rates = rounds.map(best);
    for (side, rate) in sides.iter().zip(rates) {
        let what = format!("userspace: connections per second, {}", side.name);
        report.add(&format!("userspace_connections_{}", side.name), what, rate, "/s");
    }
    let what = "userspace: connections per second against HAProxy";
    report.judge("userspace_connections_ratio", what, rates[0] / rates[1], "×", Goal::AtLeast(0.8));
    Ok(())
}

fn rate(to: SocketAddr, length: Duration) -> io::Result<f64> {
    let started = Instant::now();
    let asked = together(CLIENTS, |_| ask(to, started + length))?;
    Ok(asked as f64 / started.elapsed().as_secs_f64())
}

/// Opens one connection after the other; returns their number.
fn ask(to: SocketAddr, until: Instant) -> io::Result<u64> {
    let mut count = 0;
    let mut answer = [0; 256];
    while Instant::now() < until {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"question\n")?;
        if stream.read(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        count += 1;
    }
    Ok(count)
}
