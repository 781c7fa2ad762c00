//! Bytes per second from pods to a client, and what a gigabyte costs the proxy in CPU time.
//!
//! That is user and system time of the proxy's process. Work of soft interrupts for its packets is charged to the process that
//! was running, for both alike.

use super::pods::BULK;
use super::stage::Stage;
use super::{Contender, alternate, together};
use crate::Options;
use crate::connections::best;
use crate::field::cpu;
use crate::report::{Goal, Report};
use portway_lab::Namespace;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The most bytes of one read.
const CHUNK: usize = 256 * 1024;
/// How long the first byte may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a connection that is silent looks at the clock. With dozens at full speed one may lose packets and
/// wait for its repetition; that costs bytes, and is no failure.
const SILENCE: Duration = Duration::from_millis(50);

/// The result of a round.
struct Round {
    gigabytes: f64,
    seconds: f64,
    cpu: f64,
}

pub(super) fn measure(
    options: &Options,
    stage: &Stage,
    connections: usize,
    report: &mut Report,
) -> Result<(), String> {
    let sides = [&stage.portway(), &stage.haproxy()];
    let many =
        if connections == 1 { "one connection".to_owned() } else { format!("{connections} connections") };
    let rounds =
        alternate(options, &many, sides, |side, length| round(stage.client(), side, connections, length))?;
    let key = |what: &str| format!("userspace_{what}_{connections}");

    let rates = rounds.each_ref().map(|r| best(r.iter().map(|r| r.gigabytes / r.seconds).collect()));
    // Of all rounds together: a process's time is counted in hundredths of a second.
    let costs = rounds.each_ref().map(|rounds| {
        let sum = |of: fn(&Round) -> f64| rounds.iter().map(of).sum::<f64>();
        sum(|r| r.cpu) / sum(|r| r.gigabytes)
    });
    for (side, rate) in sides.iter().zip(rates) {
        let what = format!("userspace: bytes through {many}, {}", side.name);
        report.add(&key(&format!("rate_{}", side.name)), what, rate, "GB/s");
    }
    let what = format!("userspace: bytes through {many} against HAProxy");
    report.judge(&key("rate_ratio"), what, rates[0] / rates[1], "×", Goal::AtLeast(1.0));
    for (side, cost) in sides.iter().zip(costs) {
        let what = format!("userspace: CPU for a gigabyte through {many}, {}", side.name);
        report.add(&key(&format!("cpu_{}", side.name)), what, cost, "s/GB");
    }
    let what = format!("userspace: CPU for a gigabyte through {many} against HAProxy");
    report.judge(&key("cpu_ratio"), what, costs[0] / costs[1], "×", Goal::AtMost(1.0));
    Ok(())
}

fn round(from: &Namespace, side: &Contender, connections: usize, length: Duration) -> io::Result<Round> {
    let used = || cpu(side.pid).ok_or_else(|| io::Error::other("it is gone"));
    let before = used()?;
    let (bytes, seconds) = from.run(|| pull(side.at(BULK), connections, length))?;
    Ok(Round { gigabytes: bytes as f64 / 1e9, seconds, cpu: used()? - before })
}

/// Reads for this long; returns the bytes and the time.
fn pull(to: SocketAddr, connections: usize, length: Duration) -> io::Result<(u64, f64)> {
    let connect = |_| -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // The clock starts when all of them flow.
        (&stream).read_exact(&mut [0])?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(stream)
    };
    let streams = (0..connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    let started = Instant::now();
    let bytes = together(connections, |n| take(&streams[n], started + length))?;
    Ok((bytes, started.elapsed().as_secs_f64()))
}

/// Bytes are counted, not copied: copying would take a core from the proxies (tcp(7): `MSG_TRUNC` discards).
fn take(stream: &TcpStream, until: Instant) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut bytes = 0;
    while Instant::now() < until {
        match recv(stream, &mut buffer[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, length)) => bytes += length as u64,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}
