//! Clients by the thousand that want nothing good. Who is served meanwhile must not notice, and what they cost has a bound.
//!
//! The process that carries connections keeps no bytes of anybody's, so its memory is that of its records: a few hundred
//! bytes for each connection or session. The kernel's share is in queues of sockets, which its own settings bound, and in
//! pipes, which are ours to bound.

mod descriptors;
mod endless;
mod forger;
mod never_read;
mod strangers;
mod watched;

use crate::traffic::Traffic;
use crate::world::{NODE_PORT, WEB, World, patience};
use crate::{Outcome, Test, ensure, objects};
use forger::{Forger, stranger};
use libtest_mimic::Failed;
use portway_lab::{Namespace, Probe, eventually};
use rustix::process::Signal;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;
use watched::{Carrier, tcp_counter};

pub(crate) const TESTS: &[Test] = &[
    ("half_open_clients_keep_nobody_waiting", half_open),
    ("silent_clients_keep_nobody_waiting", silent),
    ("a_crowd_is_not_taken_for_pods_that_do_not_answer", crowd),
    ("clients_that_never_read_are_not_read_for", never_read::never_read),
    ("strangers_do_not_drive_out_who_is_served", strangers::strangers),
    ("without_descriptors_what_is_open_goes_on", descriptors::without_descriptors),
];

/// Clients that send the first segment of a handshake and nothing else. Many more than may wait at a door
/// (`net.core.somaxconn`, 4096), fewer than connections are tracked.
const HALF_OPEN: u16 = 40_000;
/// Clients that say nothing.
const SILENT: usize = 3000;
/// Clients that come in the same moment.
const CROWD: usize = 512;
/// By how much the carrier's resident memory may grow. A record of a connection is less than a kilobyte; 3000 of them,
/// what the allocator keeps of them, and code that was not used before, are far below it. If it kept bytes of any of
/// these floods, or records of those that have gone, it would be beyond.
const MEMORY: u64 = 16 << 20;

/// How long an answer may take while a flood goes on.
const ANSWER: Duration = Duration::from_secs(5);

/// The mode in force, and what its process is like with nothing to do.
struct Scene {
    carrier: Carrier,
    sockets: usize,
    resident: u64,
}

impl Scene {
    fn begin(world: &mut World, flags: &[&str]) -> Result<Scene, Failed> {
        world.start(&[&["--proxy-mode=userspace"], flags].concat())?;
        Scene::look(world)
    }

    fn look(world: &mut World) -> Result<Scene, Failed> {
        world.web_works()?;
        let carrier = Carrier::of(world)?;
        for family in ["IPv4", "IPv6"] {
            let labels =
                format!(r#"namespace="default",service="web",port="",protocol="TCP",ip_family="{family}""#);
            let total = format!("portway_userspace_connections_total{{{labels}}}");
            world.metric(&total, |connections| connections > 0.0)?;
            world.metric(&format!("portway_userspace_connections_open{{{labels}}}"), |open| open == 0.0)?;
        }
        Ok(Scene { carrier, sockets: carrier.sockets()?, resident: carrier.resident()? })
    }

    /// Memory has not grown by more than it may.
    fn is_slim(&self) -> Result<(), String> {
        let (before, now) = (self.resident, self.carrier.resident()?);
        if now <= before + MEMORY {
            Ok(())
        } else {
            Err(format!("its memory was {before} and is {now} bytes"))
        }
    }

    /// Waits until all is as it was.
    fn is_idle_again(&self) -> Outcome {
        let before = self.sockets;
        eventually(patience(), || match self.carrier.sockets()? {
            now if now <= before => Ok(()),
            now => Err(format!("it had {before} sockets and has {now}")),
        })?;
        Ok(self.is_slim()?)
    }
}

/// Does something on a thread of its own, and something else until that has ended, at least once.
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
        work.join().map_err(|_| Failed::from("the flood broke off"))
    })
}

fn v4(address: IpAddr, port: u16) -> Result<SocketAddrV4, Failed> {
    match SocketAddr::new(address, port) {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => Err(format!("{address} is not IPv4").into()),
    }
}

fn half_open(world: &mut World) -> Outcome {
    let scene = Scene::begin(world, &[])?;
    let to = [v4(WEB[0], 80)?, v4(world.node_ips()[0], NODE_PORT)?];
    let cookies = || tcp_counter(world.node(), "SyncookiesSent");
    let before = cookies()?;
    let mut traffic = Traffic::begin(world)?;
    let forger = Forger::new(world.client())?;
    let flood = || (0..HALF_OPEN).try_for_each(|n| forger.syn(stranger(n), to[usize::from(n % 2)]));
    during(flood, || {
        traffic.is_alive("during the flood")?;
        Ok(scene.is_slim()?)
    })??;
    served(world)?;
    let sent = cookies()? - before;
    // They had filled the queue: the kernel went on without.
    ensure(sent > u64::from(HALF_OPEN / 2), || format!("only {sent} cookies were sent"))?;
    traffic.end()?;
    scene.is_idle_again()
}

/// Ordinary clients are served at once, on every way.
fn served(world: &World) -> Outcome {
    for to in [SocketAddr::new(WEB[0], 80), SocketAddr::new(world.node_ips()[0], NODE_PORT)] {
        let outcome = Probe::tcp(world.client(), to).count(100).timeout(ANSWER).run();
        ensure(outcome.all_answered(), || format!("ordinary clients of {to}: {outcome}"))?;
    }
    Ok(())
}

/// Connections on which nothing is said.
fn connections(from: &Namespace, to: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    from.run(|| (0..count).map(|_| TcpStream::connect_timeout(&to, ANSWER)).collect())
}

fn silent(world: &mut World) -> Outcome {
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
    // All of them are carried, one socket to each client and one to the pod.
    let carried = || match scene.carrier.sockets()? {
        sockets if sockets >= scene.sockets + 2 * SILENT => Ok(()),
        sockets => Err(format!("it has {sockets} sockets")),
    };
    eventually(patience(), carried)?;
    served(world)?;
    scene.is_slim()?;
    drop(clients);
    traffic.end()?;
    scene.is_idle_again()
}

/// Whoever deals with a crowd takes longer than a pod may take to accept. That is not the pod's fault, which has accepted at
/// once.
fn crowd(world: &mut World) -> Outcome {
    // There is no other pod to try.
    world.apply("single.yaml", &objects::service("single", "10.96.0.7", ""));
    world.apply("single-slice.yaml", &objects::slice("single", "single", &world.pod_ips("pod1a")[..1]));
    let scene = Scene::begin(world, &["--userspace-connect-timeout=10ms"])?;
    let to = "10.96.0.7:80".parse()?;
    world.reaches(to, &["pod1a"])?;
    scene.carrier.signal(Signal::STOP)?;
    let clients = connections(world.client(), to, CROWD);
    scene.carrier.signal(Signal::CONT)?;
    for (n, mut client) in clients?.iter().enumerate() {
        client.set_read_timeout(Some(ANSWER))?;
        let greeted = client.read_exact(&mut [0; 5]);
        ensure(greeted.is_ok(), || format!("the client number {n} of {CROWD}: {greeted:?}"))?;
    }
    scene.is_idle_again()
}
