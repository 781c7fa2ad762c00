//! Bytes per second from pods to a client, and the CPU time of the proxy per gigabyte.
//!
//! CPU time is user and system time of the proxy's process. The kernel charges soft interrupts for its packets to the
//! process that was running; that affects both proxies alike.

use super::pods::BULK;
use super::testbed::Testbed;
use super::{MeasuredProxy, alternate, together};
use crate::Options;
use crate::cluster::cpu;
use crate::connections::best;
use crate::report::{Goal, Report};
use portway_lab::Namespace;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The most bytes of one read.
const CHUNK: usize = 256 * 1024;
/// The time limit for the first byte.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which a connection without data checks the clock. With dozens of connections at full speed, packets
/// of one may be lost and retransmitted later; that lowers its rate and is not a failure.
const READ_TIMEOUT: Duration = Duration::from_millis(50);

/// The result of a round.
struct Round {
    gigabytes: f64,
    seconds: f64,
    cpu: f64,
}

pub(super) fn measure(
    options: &Options,
    testbed: &Testbed,
    connections: usize,
    report: &mut Report,
) -> Result<(), String> {
    let proxies = [&testbed.portway(), &testbed.haproxy()];
    let many =
        if connections == 1 { "one connection".to_owned() } else { format!("{connections} connections") };
    let rounds = alternate(options, &many, proxies, |proxy, length| {
        round(testbed.client(), proxy, connections, length)
    })?;
    let key = |label: &str| format!("userspace_{label}_{connections}");

    let rates = rounds.each_ref().map(|r| best(r.iter().map(|r| r.gigabytes / r.seconds).collect()));
    // Of all rounds together, since the CPU time of a process has a resolution of 10 ms.
    let costs = rounds.each_ref().map(|rounds| {
        let sum = |of: fn(&Round) -> f64| rounds.iter().map(of).sum::<f64>();
        sum(|r| r.cpu) / sum(|r| r.gigabytes)
    });
    for (proxy, rate) in proxies.iter().zip(rates) {
        let label = format!("userspace: bytes through {many}, {}", proxy.name);
        report.add(&key(&format!("rate_{}", proxy.name)), label, rate, "GB/s");
    }
    let label = format!("userspace: bytes through {many} against HAProxy");
    report.add_with_goal(&key("rate_ratio"), label, rates[0] / rates[1], "×", Goal::AtLeast(1.0));
    for (proxy, cost) in proxies.iter().zip(costs) {
        let label = format!("userspace: CPU for a gigabyte through {many}, {}", proxy.name);
        report.add(&key(&format!("cpu_{}", proxy.name)), label, cost, "s/GB");
    }
    let label = format!("userspace: CPU for a gigabyte through {many} against HAProxy");
    report.add_with_goal(&key("cpu_ratio"), label, costs[0] / costs[1], "×", Goal::AtMost(1.0));
    Ok(())
}

fn round(from: &Namespace, proxy: &MeasuredProxy, connections: usize, length: Duration) -> io::Result<Round> {
    let used = || cpu(proxy.pid).ok_or_else(|| io::Error::other("the proxy has exited"));
    let before = used()?;
    let (bytes, seconds) = from.run(|| pull(proxy.at(BULK), connections, length))?;
    Ok(Round { gigabytes: bytes as f64 / 1e9, seconds, cpu: used()? - before })
}

/// Reads for `length`; returns the bytes and the seconds.
fn pull(to: SocketAddr, connections: usize, length: Duration) -> io::Result<(u64, f64)> {
    let connect = |_| -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&to, WAIT_TIMEOUT)?;
        stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
        // Time is measured from when all connections transfer bytes.
        (&stream).read_exact(&mut [0])?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(stream)
    };
    let streams = (0..connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    let started = Instant::now();
    let bytes = together(connections, |n| count_bytes(&streams[n], started + length))?;
    Ok((bytes, started.elapsed().as_secs_f64()))
}

/// Counts bytes without copying them, which would take CPU time from the proxies (tcp(7): `MSG_TRUNC` discards).
fn count_bytes(stream: &TcpStream, until: Instant) -> io::Result<u64> {
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
