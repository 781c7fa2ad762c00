//! Datagrams to a pod and back per second, compared with a plain forwarder. HAProxy does not forward UDP.
//!
//! Each client has a window of datagrams in flight and sends one for each that comes back. After a timeout it sends a
//! full window again.

use super::forwarder::Forwarder;
use super::pods::ECHO;
use super::testbed::{MeasuredProxy, Testbed};
use super::{alternate, together};
use crate::Options;
use crate::connections::best;
use crate::report::Report;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// The number of clients; each has a socket.
const CLIENTS: usize = 8;
/// Datagrams that a client has in flight. Those of all clients fit into the buffer of a single socket.
const WINDOW: usize = 16;
const SIZE: usize = 64;
/// The time after which datagrams in flight count as lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(50);

pub(super) fn measure(options: &Options, testbed: &Testbed, report: &mut Report) -> Result<(), String> {
    let forwarder = Forwarder::start(testbed.node(), ECHO, &testbed.pods()).map_err(|e| e.to_string())?;
    let plain = MeasuredProxy {
        name: "a plain forwarder",
        ip: testbed.node().ipv4().into(),
        pid: std::process::id(),
    };
    let proxies = [&testbed.portway(), &plain];
    let rounds = alternate(options, "datagrams", proxies, |proxy, length| {
        testbed.client().run(|| rate(proxy.at(ECHO), length))
    })?;
    drop(forwarder);
    let rates = rounds.map(best);
    for ((proxy, rate), key) in proxies.iter().zip(rates).zip(["Portway", "plain"]) {
        let label = format!("userspace: datagrams there and back per second, {}", proxy.name);
        report.add(&format!("userspace_udp_{key}"), label, rate, "/s");
    }
    let label = "userspace: datagrams per second against a plain forwarder";
    report.add("userspace_udp_ratio", label, rates[0] / rates[1], "×");
    Ok(())
}

fn rate(to: SocketAddr, length: Duration) -> io::Result<f64> {
    let started = Instant::now();
    let answered = together(CLIENTS, |_| ask(to, started + length))?;
    match answered as f64 / started.elapsed().as_secs_f64() {
        0.0 => Err(io::Error::other("no datagram came back")),
        rate => Ok(rate),
    }
}

/// Keeps the window full; returns the number of datagrams that came back.
fn ask(to: SocketAddr, until: Instant) -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOSS_TIMEOUT))?;
    let (question, mut answer) = ([0x5a; SIZE], [0; SIZE]);
    let mut answered = 0;
    let mut due = WINDOW;
    while Instant::now() < until {
        for _ in 0..due {
            socket.send(&question)?;
        }
        due = match socket.recv(&mut answer) {
            Ok(_) => {
                answered += 1;
                1
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => WINDOW,
            Err(e) => return Err(e),
        };
    }
    Ok(answered)
}
