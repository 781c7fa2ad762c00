//! Clients that never read what a pod sends.

use super::endless::Endless;
use super::relay_process::{queued, tcp_memory};
use super::{ANSWER, Scene, connections, during, served};
use crate::agent_lab::{AgentLab, patience};
use crate::traffic::Traffic;
use crate::{Outcome, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Namespace, eventually};
use std::fs;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};

/// The number of these clients.
const NEVER_READING: usize = 1000;
/// How many of them connect at once.
const AT_ONCE: usize = 200;
/// The kernel's limit on one queue of a socket. There are four along the path of a connection: the pod's, two at the node, the
/// client's.
const QUEUE: u64 = 256 << 10;
/// The bytes that may be in all pipes together: 64 MB, and 4 KB for each connection beyond that; and as much again for bytes
/// that are counted twice because they are under way.
const PIPES: u64 = (64 << 20) + 2 * 4096 * NEVER_READING as u64;

pub(super) fn never_read(world: &mut AgentLab) -> Outcome {
    world.apply("endless.yaml", &objects::service("endless", "10.96.0.9", ""));
    let slice = objects::slice("endless", "endless", &world.pod_ips("pod1b")[..1]);
    world.apply("endless-slice.yaml", &slice.replace("8080", "9090"));
    for namespace in path(world) {
        bound_queues(namespace)?;
    }
    let endless = Endless::start(world.pod("pod1b"), 9090)?;
    let scene = Scene::begin(world, &[])?;
    let before = tcp_memory(world.node())?;
    let mut traffic = Traffic::begin(world)?;
    let (client, to) = (world.client(), "10.96.0.9:80".parse()?);
    let mut clients = Vec::new();
    while clients.len() < NEVER_READING {
        clients
            .extend(during(|| connections(client, to, AT_ONCE), || traffic.is_alive("while they connect"))??);
        stalled(&endless, || traffic.is_alive("while queues fill"))?;
    }
    let all = NEVER_READING as u64;
    ensure(endless.sent() > all * QUEUE, || format!("only {} bytes were sent", endless.sent()))?;
    served(world)?;
    // Now that queues are full each reads some: so that pipes fill as well.
    let mut some = vec![0; 512 << 10];
    clients.iter().try_for_each(|mut client| client.read_exact(&mut some))?;
    let sent = stalled(&endless, || traffic.is_alive("while queues fill again"))?;
    scene.is_slim()?;
    let queues = path(world).map(queued).into_iter().collect::<Result<Vec<u64>, String>>()?;
    let piped = (sent - all * some.len() as u64).saturating_sub(queues.iter().sum());
    ensure(piped <= PIPES, || format!("{piped} bytes are in pipes"))?;
    // The kernel lets a queue grow by a packet or two beyond its size.
    ensure(queues[1] <= 2 * all * (QUEUE + QUEUE / 8), || {
        format!("{} bytes are queued at the node", queues[1])
    })?;
    let memory = || tcp_memory(world.node()).map(|now| now.saturating_sub(before));
    // All four queues, and half as much again for the kernel's bookkeeping.
    let taken = memory()?;
    ensure(taken <= 6 * all * QUEUE, || format!("{taken} bytes are taken by buffers of sockets"))?;
    served(world)?;
    reads_to_the_end(world, to)?;
    drop(clients);
    traffic.end()?;
    let returned = || match memory()? {
        left if left <= taken / 4 => Ok(()),
        left => Err(format!("{left} bytes are still taken by buffers of sockets")),
    };
    eventually(patience(), returned)?;
    scene.is_idle_again()
}

/// The namespaces along the path of a byte.
fn path(world: &AgentLab) -> [&Namespace; 3] {
    [world.pod("pod1b"), world.node(), world.client()]
}

/// Lowers the kernel's limit on one queue of a socket, which is several megabytes by default, or tens of them.
fn bound_queues(namespace: &Namespace) -> io::Result<()> {
    let set = |name| fs::write(format!("/proc/sys/net/ipv4/{name}"), format!("4096 131072 {QUEUE}"));
    namespace.run(|| ["tcp_rmem", "tcp_wmem"].into_iter().try_for_each(set))
}

/// A client of the same pod that reads is served.
fn reads_to_the_end(world: &AgentLab, to: SocketAddr) -> Outcome {
    let mut reader = world.client().run(|| TcpStream::connect_timeout(&to, ANSWER))?;
    reader.set_read_timeout(Some(ANSWER))?;
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..32 {
        reader.read_exact(&mut bytes)?;
    }
    Ok(())
}

/// Waits until the pod cannot send any more.
fn stalled(endless: &Endless, mut meanwhile: impl FnMut() -> Outcome) -> Result<u64, Failed> {
    const LOOKS: usize = 10;
    let mut looks = (0, 0);
    Ok(eventually(patience(), || {
        meanwhile().map_err(|failed| failed.message().unwrap_or_default().to_owned())?;
        let sent = endless.sent();
        looks = if looks.0 == sent { (sent, looks.1 + 1) } else { (sent, 0) };
        if looks.1 >= LOOKS {
            Ok(sent)
        } else {
            Err(format!("{sent} bytes were sent, and the pod still sends"))
        }
    })?)
}
