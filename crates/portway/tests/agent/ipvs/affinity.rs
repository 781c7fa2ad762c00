//! Session affinity and its expiry. A client expires up to a minute later than the Service's timeout: while the kernel
//! has an entry for one of its connections, it postpones the expiry by a minute (`ip_vs_conn_expire`).

use super::start;
use crate::agent_lab::{AgentLab, answer_timeout};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use rustix::net::sockopt::set_socket_linger;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[("affinity_holds_and_expires", expires)];

/// The Service's timeout of one second, the kernel's minute, and the ten seconds for which a reset connection has an
/// entry.
const EXPIRED_AFTER: Duration = Duration::from_secs(75);

/// The pod that answers a connection, which is then reset.
fn answering_pod(lab: &AgentLab, to: SocketAddr) -> Result<String, Failed> {
    let stream = lab.client().run(|| TcpStream::connect_timeout(&to, answer_timeout()))?;
    stream.set_read_timeout(Some(answer_timeout()))?;
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    let mut greeting = String::new();
    BufReader::new(stream).read_line(&mut greeting)?;
    Ok(greeting.split(' ').next().unwrap_or_default().to_owned())
}

fn expires(lab: &mut AgentLab) -> Outcome {
    let sticky = "clusterIPs: ['10.96.0.70', 'fd96::70']\nsessionAffinity: ClientIP\nsessionAffinityConfig:\n  clientIP:\n    timeoutSeconds: 1";
    lab.apply("sticky.yaml", &objects::service("sticky", "10.96.0.70", sticky));
    for (i, family) in ["v4", "v6"].into_iter().enumerate() {
        let pods = ["pod1a", "pod1b"].map(|pod| lab.pod_ips(pod)[i]);
        let name = format!("sticky-{family}");
        lab.apply(&format!("{name}.yaml"), &objects::slice("sticky", &name, &pods));
    }
    start(lab, &[])?;
    let both: [IpAddr; 2] = ["10.96.0.70".parse()?, "fd96::70".parse()?];
    let mut first = Vec::new();
    for (ip, server) in both.into_iter().zip(["TCP 10.96.0.70:80", "TCP [fd96::70]:80"]) {
        super::wait_until(
            || lab.servers(),
            |servers| {
                let sticky = |name: &String| name.starts_with(&format!("{server} rr persistent 1"));
                servers.iter().any(|(name, real)| sticky(name) && real.len() == 2)
            },
        )?;
        super::wait_until(|| lab.bound(), |bound| bound.iter().any(|b| b.starts_with(&format!("{ip}/"))))?;
        let to = SocketAddr::new(ip, 80);
        let one = answering_pod(lab, to)?;
        for _ in 0..8 {
            let again = answering_pod(lab, to)?;
            ensure(again == one, || format!("{to}: first {one}, then {again}"))?;
        }
        first.push((to, one));
    }
    thread::sleep(EXPIRED_AFTER);
    for (to, one) in first {
        // No other client has connected, so round-robin chooses the other endpoint.
        let then = answering_pod(lab, to)?;
        ensure(then != one, || format!("{to}: still {then}"))?;
        let again = answering_pod(lab, to)?;
        ensure(again == then, || format!("{to}: now {then}, then {again}"))?;
    }
    Ok(())
}
