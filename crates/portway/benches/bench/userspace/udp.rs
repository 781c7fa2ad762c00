//! Datagrams to a pod and back per second, against a plain forwarder. HAProxy does not forward UDP.
//!
//! Each client has a window of datagrams under way and sends one for each that comes back. Lost ones are sent again
//! after a while.

use super::forwarder::Forwarder;
use super::pods::ECHO;
use super::stage::{Contender, Stage};
use super::{alternate, together};
use crate::Options;
use crate::connections::best;
use crate::report::Report;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Clients, with a socket each.
const CLIENTS: usize = 8;
/// Datagrams that a client has under way. Those of all fit into the buffer of a single socket.
const WINDOW: usize = 16;
const SIZE: usize = 64;
/// When those under way are thought to be lost.
const LOST: Duration = Duration::from_millis(50);

pub(super) fn measure(options: &Options, stage: &Stage, report: &mut Report) -> Result<(), String> {
    let forwarder = Forwarder::start(stage.node(), ECHO, &stage.pods()).map_err(|e| e.to_string())?;
    let plain =
        Contender { name: "a plain forwarder", ip: stage.node().ipv4().into(), pid: std::process::id() };
    let sides = [&stage.portway(), &plain];
    let rounds = alternate(options, "datagrams", sides, |side, length| {
        stage.client().run(|| rate(side.at(ECHO), length))
    })?;
    drop(forwarder);
    let rates = rounds.map(best);
    for ((side, rate), key) in sides.iter().zip(rates).zip(["Portway", "plain"]) {
        let what = format!("userspace: datagrams there and back per second, {}", side.name);
        report.add(&format!("userspace_udp_{key}"), what, rate, "/s");
    }
    let what = "userspace: datagrams per second against a plain forwarder";
    report.add("userspace_udp_ratio", what, rates[0] / rates[1], "×");
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

/// Keeps the window full; returns how many came back.
fn ask(to: SocketAddr, until: Instant) -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
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
