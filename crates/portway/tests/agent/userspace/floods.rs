//! Thousands of hostile clients. Ordinary clients must not notice them, and their cost must be bounded.
//!
//! The relay process buffers no bytes itself, so its memory is that of its records: a few hundred bytes for each connection or
//! session. The kernel's memory is in the queues of sockets, which its own settings bound, and in pipes, which the relay
//! bounds.

mod descriptors;
mod endless;
mod forger;
mod never_read;
mod relay_process;
mod udp_sources;

use crate::agent_lab::{AgentLab, NODE_PORT, WEB, patience};
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
    ("a_burst_of_clients_is_not_taken_for_a_slow_pod", crowd),
    ("bytes_for_clients_that_never_read_are_bounded", never_read::never_read),
    ("a_flood_of_udp_sources_evicts_no_active_session", udp_sources::udp_sources),
    ("open_connections_go_on_without_free_descriptors", descriptors::without_descriptors),
];

/// Clients that send the first segment of a handshake and nothing else. Many more than a listener's queue holds
/// (`net.core.somaxconn`, 4096), fewer than the kernel tracks.
const HALF_OPEN: u16 = 40_000;
/// Clients that send nothing.
const SILENT: usize = 3000;
/// Clients that connect in the same moment.
const CROWD: usize = 512;
/// By how much the relay's resident memory may grow. A record of a connection is less than a kilobyte; 3000 of them, with the
/// allocator's share and code that was not used before, are far below it. With buffered bytes of any of these floods, or
/// with records of ended connections, it would be exceeded.
const MEMORY: u64 = 16 << 20;

/// How long an answer may take while a flood goes on.
const ANSWER: Duration = Duration::from_secs(5);

/// A running relay, and its resources when idle.
struct Scene {
    relay: RelayProcess,
    sockets: usize,
    resident: u64,
}

impl Scene {
    fn begin(world: &mut AgentLab, flags: &[&str]) -> Result<Scene, Failed> {
        world.start(&[&["--proxy-mode=userspace"], flags].concat())?;
        Scene::look(world)
    }

    fn look(world: &mut AgentLab) -> Result<Scene, Failed> {
        world.web_works()?;
        let relay = RelayProcess::of(world)?;
        for family in ["IPv4", "IPv6"] {
            let labels =
                format!(r#"namespace="default",service="web",port="",protocol="TCP",ip_family="{family}""#);
            let total = format!("portway_userspace_connections_total{{{labels}}}");
            world.metric(&total, |connections| connections > 0.0)?;
            world.metric(&format!("portway_userspace_connections_open{{{labels}}}"), |open| open == 0.0)?;
        }
        Ok(Scene { relay, sockets: relay.sockets()?, resident: relay.resident()? })
    }

    /// Checks that memory has not grown by more than [`MEMORY`].
    fn is_slim(&self) -> Result<(), String> {
        let (before, now) = (self.resident, self.relay.resident()?);
        if now <= before + MEMORY {
            Ok(())
        } else {
            Err(format!("its memory was {before} and is {now} bytes"))
        }
    }

    /// Waits until the relay has as few sockets as at the start.
    fn is_idle_again(&self) -> Outcome {
        let before = self.sockets;
        eventually(patience(), || match self.relay.sockets()? {
            now if now <= before => Ok(()),
            now => Err(format!("it had {before} sockets and has {now}")),
        })?;
        Ok(self.is_slim()?)
    }
}

/// Does `work` on a thread of its own, and repeats `meanwhile` until it has ended, at least once.
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

fn half_open(world: &mut AgentLab) -> Outcome {
    let scene = Scene::begin(world, &[])?;
    let to = [v4(WEB[0], 80)?, v4(world.node_ips()[0], NODE_PORT)?];
    let cookies = || tcp_counter(world.node(), "SyncookiesSent");
    let before = cookies()?;
    let mut traffic = Traffic::begin(world)?;
    let forger = Forger::new(world.client())?;
    let flood = || (0..HALF_OPEN).try_for_each(|n| forger.syn(forged_source(n), to[usize::from(n % 2)]));
    during(flood, || {
        traffic.is_alive("during the flood")?;
        Ok(scene.is_slim()?)
    })??;
    served(world)?;
    let sent = cookies()? - before;
    // The queue was full: the kernel sent SYN cookies.
    ensure(sent > u64::from(HALF_OPEN / 2), || format!("only {sent} cookies were sent"))?;
    traffic.end()?;
    scene.is_idle_again()
}

/// Ordinary clients are served, at the cluster IP and at the node port.
fn served(world: &AgentLab) -> Outcome {
    for to in [SocketAddr::new(WEB[0], 80), SocketAddr::new(world.node_ips()[0], NODE_PORT)] {
        let outcome = Probe::tcp(world.client(), to).count(100).timeout(ANSWER).run();
        ensure(outcome.all_answered(), || format!("ordinary clients of {to}: {outcome}"))?;
    }
    Ok(())
}

/// Connections on which nothing is sent.
fn connections(from: &Namespace, to: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    from.run(|| (0..count).map(|_| TcpStream::connect_timeout(&to, ANSWER)).collect())
}

fn silent(world: &mut AgentLab) -> Outcome {
    let scene = Scene::begin(world, &[])?;
    let mut traffic = Traffic::begin(world)?;
    let client = world.client();
    let clients = during(
        || connections(client, SocketAddr::new(WEB[0], 80), SILENT),
        || {
            traffic.is_alive("during the flood")?;
            Ok(scene.is_slim()?)
        },
    )??;
    // All of them are relayed, with one socket to each client and one to the pod.
    let relayed = || match scene.relay.sockets()? {
        sockets if sockets >= scene.sockets + 2 * SILENT => Ok(()),
        sockets => Err(format!("it has {sockets} sockets")),
    };
    eventually(patience(), relayed)?;
    served(world)?;
    scene.is_slim()?;
    drop(clients);
    traffic.end()?;
    scene.is_idle_again()
}

/// The relay takes longer for a burst of clients than the connect time-out. The pod has accepted at once, so it must not
/// count as slow.
fn crowd(world: &mut AgentLab) -> Outcome {
    // There is no other pod to try.
    world.apply("single.yaml", &objects::service("single", "10.96.0.7", ""));
    world.apply("single-slice.yaml", &objects::slice("single", "single", &world.pod_ips("pod1a")[..1]));
    let scene = Scene::begin(world, &["--userspace-connect-timeout=10ms"])?;
    let to = "10.96.0.7:80".parse()?;
    world.reaches(to, &["pod1a"])?;
    scene.relay.signal(Signal::STOP)?;
    let clients = connections(world.client(), to, CROWD);
    scene.relay.signal(Signal::CONT)?;
    for (n, mut client) in clients?.iter().enumerate() {
        client.set_read_timeout(Some(ANSWER))?;
        let greeted = client.read_exact(&mut [0; 5]);
        ensure(greeted.is_ok(), || format!("the client number {n} of {CROWD}: {greeted:?}"))?;
    }
    scene.is_idle_again()
}
