//! Clients that never read the bytes that a pod sends.

use super::endless::EndlessServer;
use super::relay_process::{queued, tcp_memory};
use super::{ANSWER_TIMEOUT, RelayBaseline, connections, during, served};
use crate::agent_lab::{AgentLab, wait_timeout};
use crate::traffic::Traffic;
use crate::{Outcome, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Namespace, eventually};
use std::fs;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};

/// The number of clients that do not read.
const NEVER_READING: usize = 1000;
/// How many of them connect at a time.
const AT_ONCE: usize = 200;
/// The kernel's limit on one queue of a socket. A connection has four on its path: one in the pod, two on the node, one
/// at the client.
const QUEUE: u64 = 256 << 10;
/// The bytes that may be in all pipes together: 64 MB, and 4 KB for each connection beyond that; and another 4 KB for
/// each, since bytes in flight are counted twice.
const PIPES: u64 = (64 << 20) + 2 * 4096 * NEVER_READING as u64;

pub(super) fn never_read(lab: &mut AgentLab) -> Outcome {
    lab.apply("endless.yaml", &objects::service("endless", "10.96.0.9", ""));
    let slice = objects::slice("endless", "endless", &lab.pod_ips("pod1b")[..1]);
    lab.apply("endless-slice.yaml", &slice.replace("8080", "9090"));
    for namespace in path(lab) {
        bound_queues(namespace)?;
    }
    let endless = EndlessServer::start(lab.pod("pod1b"), 9090)?;
    let baseline = RelayBaseline::start(lab, &[])?;
    let before = tcp_memory(lab.node())?;
    let mut traffic = Traffic::begin(lab)?;
    let (client, to) = (lab.client(), "10.96.0.9:80".parse()?);
    let mut clients = Vec::new();
    while clients.len() < NEVER_READING {
        clients
            .extend(during(|| connections(client, to, AT_ONCE), || traffic.is_alive("while they connect"))??);
        stalled(&endless, || traffic.is_alive("while queues fill"))?;
    }
    let all = NEVER_READING as u64;
    ensure(endless.sent() > all * QUEUE, || format!("only {} bytes were sent", endless.sent()))?;
    served(lab)?;
    // The queues are full. Each client reads some bytes, so that pipes fill as well.
    let mut some = vec![0; 512 << 10];
    clients.iter().try_for_each(|mut client| client.read_exact(&mut some))?;
    let sent = stalled(&endless, || traffic.is_alive("while queues fill again"))?;
    baseline.check_memory()?;
    let queues = path(lab).map(queued).into_iter().collect::<Result<Vec<u64>, String>>()?;
    let piped = (sent - all * some.len() as u64).saturating_sub(queues.iter().sum());
    ensure(piped <= PIPES, || format!("{piped} bytes are in pipes"))?;
    // The kernel lets a queue exceed its limit by a packet or two.
    ensure(queues[1] <= 2 * all * (QUEUE + QUEUE / 8), || {
        format!("{} bytes are queued at the node", queues[1])
    })?;
    let memory = || tcp_memory(lab.node()).map(|now| now.saturating_sub(before));
    // Four full queues, and half of that for the overhead of the kernel.
    let taken = memory()?;
    ensure(taken <= 6 * all * QUEUE, || format!("socket buffers take {taken} bytes"))?;
    served(lab)?;
    reading_client_is_served(lab, to)?;
    drop(clients);
    traffic.end()?;
    let returned = || match memory()? {
        left if left <= taken / 4 => Ok(()),
        left => Err(format!("socket buffers still take {left} bytes")),
    };
    eventually(wait_timeout(), returned)?;
    baseline.wait_until_idle()
}

/// The namespaces that bytes pass, in order.
fn path(lab: &AgentLab) -> [&Namespace; 3] {
    [lab.pod("pod1b"), lab.node(), lab.client()]
}

/// Lowers the limit on one queue of a socket, which is several megabytes or more by default.
fn bound_queues(namespace: &Namespace) -> io::Result<()> {
    let set = |name| fs::write(format!("/proc/sys/net/ipv4/{name}"), format!("4096 131072 {QUEUE}"));
    namespace.run(|| ["tcp_rmem", "tcp_wmem"].into_iter().try_for_each(set))
}

/// Checks that a client of the same pod that reads is served.
fn reading_client_is_served(lab: &AgentLab, to: SocketAddr) -> Outcome {
    let mut reader = lab.client().run(|| TcpStream::connect_timeout(&to, ANSWER_TIMEOUT))?;
    reader.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..32 {
        reader.read_exact(&mut bytes)?;
    }
    Ok(())
}

/// Waits until the pod can send no more bytes; returns the bytes sent.
fn stalled(endless: &EndlessServer, mut meanwhile: impl FnMut() -> Outcome) -> Result<u64, Failed> {
    /// The number of successive checks without a sent byte.
    const CHECKS: usize = 10;
    let mut unchanged = (0, 0);
    Ok(eventually(wait_timeout(), || {
        meanwhile().map_err(|failed| failed.message().unwrap_or_default().to_owned())?;
        let sent = endless.sent();
        unchanged = if unchanged.0 == sent { (sent, unchanged.1 + 1) } else { (sent, 0) };
        if unchanged.1 >= CHECKS {
            Ok(sent)
        } else {
            Err(format!("{sent} bytes were sent, and the pod still sends"))
        }
    })?)
}
