//! Thousands of hostile clients. They must not affect ordinary clients, and their cost must be bounded.
//!
//! The relay process buffers no bytes itself: it uses a few hundred bytes of memory for each connection or session. The
//! kernel uses memory for the queues of sockets, which its sysctls bound, and for pipes, which the relay bounds.

mod descriptors;
mod endless;
mod forger;
mod never_read;
mod relay_process;
mod udp_sources;

use crate::agent_lab::{AgentLab, NODE_PORT, WEB, wait_timeout};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure, objects};
use forger::{Forger, forged_source};
use libtest_mimic::Failed;
use portway_lab::{Namespace, Probe, eventually};
use relay_process::{RelayProcess, tcp_counter};
use rustix::process::Signal;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("half_open_clients_delay_no_other", half_open),
    ("silent_clients_delay_no_other", silent),
    ("a_burst_of_clients_is_not_taken_for_a_slow_pod", burst),
    ("bytes_for_clients_that_never_read_are_bounded", never_read::never_read),
    ("a_flood_of_udp_sources_evicts_no_active_session", udp_sources::udp_sources),
    ("open_connections_work_without_free_descriptors", descriptors::without_descriptors),
];

/// Clients that send the first segment of a handshake and nothing else. Many more than a listener's queue holds
/// (`net.core.somaxconn`, 4096), fewer than the kernel tracks.
const HALF_OPEN: u16 = 40_000;
/// Clients that send nothing.
const SILENT: usize = 3000;
/// Clients that connect at the same time.
const BURST: usize = 512;
/// By how much the relay's resident memory may grow. A connection takes less than a kilobyte; 3000 of them, with the
/// allocator's overhead and code that was not used before, take far less than this limit. If the relay buffered the
/// bytes of one of these floods, or kept ended connections, it would exceed the limit.
const MEMORY_GROWTH: u64 = 16 << 20;

/// The time limit for an answer during a flood.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A relay process, with its sockets and memory when it was idle.
struct RelayBaseline {
    relay: RelayProcess,
    sockets: usize,
    resident: u64,
}

impl RelayBaseline {
    /// Starts the agent and measures the idle relay.
    fn start(lab: &mut AgentLab, flags: &[&str]) -> Result<RelayBaseline, Failed> {
        lab.start(&[&["--proxy-mode=userspace"], flags].concat())?;
        RelayBaseline::measure(lab)
    }

    /// Measures the relay once the connections of the first check have ended.
    fn measure(lab: &mut AgentLab) -> Result<RelayBaseline, Failed> {
        lab.web_works()?;
        let relay = RelayProcess::of(lab)?;
        for family in ["IPv4", "IPv6"] {
            let labels =
                format!(r#"namespace="default",service="web",port="",protocol="TCP",ip_family="{family}""#);
            let total = format!("portway_userspace_connections_total{{{labels}}}");
            lab.metric(&total, |connections| connections > 0.0)?;
            lab.metric(&format!("portway_userspace_connections_open{{{labels}}}"), |open| open == 0.0)?;
        }
        Ok(RelayBaseline { relay, sockets: relay.sockets()?, resident: relay.resident()? })
    }

    /// Checks that memory has not grown by more than [`MEMORY_GROWTH`].
    fn check_memory(&self) -> Result<(), String> {
        let (before, now) = (self.resident, self.relay.resident()?);
        if now <= before + MEMORY_GROWTH {
            Ok(())
        } else {
            Err(format!("the resident memory was {before} and is {now} bytes"))
        }
    }

    /// Waits until the relay has no more sockets than at the start.
    fn wait_until_idle(&self) -> Outcome {
        let before = self.sockets;
        eventually(wait_timeout(), || match self.relay.sockets()? {
            now if now <= before => Ok(()),
            now => Err(format!("the relay had {before} sockets and has {now}")),
        })?;
        Ok(self.check_memory()?)
    }
}

/// Runs `work` on another thread, and repeats `meanwhile` until `work` has ended, at least once.
fn during<T: Send>(
    work: impl FnOnce() -> T + Send,
    mut meanwhile: impl FnMut() -> Outcome,
) -> Result<T, Failed> {
    thread::scope(|scope| {
        let work = scope.spawn(work);
        loop {
            let over = work.is_finished();
            meanwhile()?;
            if over {
                break;
            }
        }
        work.join().map_err(|_| Failed::from("the flood panicked"))
    })
}

fn v4(address: IpAddr, port: u16) -> Result<SocketAddrV4, Failed> {
    match SocketAddr::new(address, port) {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => Err(format!("{address} is not IPv4").into()),
    }
}

fn half_open(lab: &mut AgentLab) -> Outcome {
    let baseline = RelayBaseline::start(lab, &[])?;
    let to = [v4(WEB[0], 80)?, v4(lab.node_ips()[0], NODE_PORT)?];
    let cookies = || tcp_counter(lab.node(), "SyncookiesSent");
    let before = cookies()?;
    let mut traffic = Traffic::begin(lab)?;
    let forger = Forger::new(lab.client())?;
    let flood = || (0..HALF_OPEN).try_for_each(|n| forger.syn(forged_source(n), to[usize::from(n % 2)]));
    during(flood, || {
        traffic.is_alive("during the flood")?;
        Ok(baseline.check_memory()?)
    })??;
    served(lab)?;
    let sent = cookies()? - before;
    // The kernel sends SYN cookies when the queue is full.
    ensure(sent > u64::from(HALF_OPEN / 2), || format!("only {sent} SYN cookies were sent"))?;
    traffic.end()?;
    baseline.wait_until_idle()
}

/// Checks that ordinary clients are served, at the cluster IP and at the node port.
fn served(lab: &AgentLab) -> Outcome {
    for to in [SocketAddr::new(WEB[0], 80), SocketAddr::new(lab.node_ips()[0], NODE_PORT)] {
        let outcome = Probe::tcp(lab.client(), to).count(100).timeout(ANSWER_TIMEOUT).run();
        ensure(outcome.all_answered(), || format!("ordinary clients of {to}: {outcome}"))?;
    }
    Ok(())
}

/// Opens connections on which the client sends nothing.
fn connections(from: &Namespace, to: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    from.run(|| (0..count).map(|_| TcpStream::connect_timeout(&to, ANSWER_TIMEOUT)).collect())
}

fn silent(lab: &mut AgentLab) -> Outcome {
    let baseline = RelayBaseline::start(lab, &[])?;
    let mut traffic = Traffic::begin(lab)?;
    let client = lab.client();
    let clients = during(
        || connections(client, SocketAddr::new(WEB[0], 80), SILENT),
        || {
            traffic.is_alive("during the flood")?;
            Ok(baseline.check_memory()?)
        },
    )??;
    // All of them are relayed, with one socket for the client and one for the pod.
    let relayed = || match baseline.relay.sockets()? {
        sockets if sockets >= baseline.sockets + 2 * SILENT => Ok(()),
        sockets => Err(format!("the relay has {sockets} sockets")),
    };
    eventually(wait_timeout(), relayed)?;
    served(lab)?;
    baseline.check_memory()?;
    drop(clients);
    traffic.end()?;
    baseline.wait_until_idle()
}

/// The relay needs longer for a burst of clients than the connect timeout. The pod accepts at once, so it must not
/// count as slow.
fn burst(lab: &mut AgentLab) -> Outcome {
    // There is no other pod to try.
    lab.apply("single.yaml", &objects::service("single", "10.96.0.7", ""));
    lab.apply("single-slice.yaml", &objects::slice("single", "single", &lab.pod_ips("pod1a")[..1]));
    let baseline = RelayBaseline::start(lab, &["--userspace-connect-timeout=10ms"])?;
    let to = "10.96.0.7:80".parse()?;
    lab.reaches(to, &["pod1a"])?;
    baseline.relay.signal(Signal::STOP)?;
    let clients = connections(lab.client(), to, BURST);
    baseline.relay.signal(Signal::CONT)?;
    for (n, mut client) in clients?.iter().enumerate() {
        client.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let greeted = client.read_exact(&mut [0; 5]);
        ensure(greeted.is_ok(), || format!("client {n} of {BURST}: {greeted:?}"))?;
    }
    baseline.wait_until_idle()
}
