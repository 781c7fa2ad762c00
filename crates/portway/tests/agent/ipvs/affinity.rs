//! A client sticks to its endpoint, and is forgotten. For that it takes a minute more than the Service says: while the
//! kernel remembers one of its connections, it looks again every minute only (`ip_vs_conn_expire`).

use super::start;
use crate::agent_lab::{AgentLab, answer};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use rustix::net::sockopt::set_socket_linger;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[("affinity_holds_and_expires", forgotten)];

/// A second, the kernel's minute, and the ten seconds that a connection is remembered after a reset.
const FORGOTTEN: Duration = Duration::from_secs(75);

/// Who answers, on a connection that ends with a reset.
fn asks(world: &AgentLab, to: SocketAddr) -> Result<String, Failed> {
    let stream = world.client().run(|| TcpStream::connect_timeout(&to, answer()))?;
    stream.set_read_timeout(Some(answer()))?;
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    let mut greeting = String::new();
    BufReader::new(stream).read_line(&mut greeting)?;
    Ok(greeting.split(' ').next().unwrap_or_default().to_owned())
}

fn forgotten(world: &mut AgentLab) -> Outcome {
    let sticky = "clusterIPs: ['10.96.0.70', 'fd96::70']\nsessionAffinity: ClientIP\nsessionAffinityConfig:\n  clientIP:\n    timeoutSeconds: 1";
    world.apply("sticky.yaml", &objects::service("sticky", "10.96.0.70", sticky));
    for (i, family) in ["v4", "v6"].into_iter().enumerate() {
        let pods = ["pod1a", "pod1b"].map(|pod| world.pod_ips(pod)[i]);
        let name = format!("sticky-{family}");
        world.apply(&format!("{name}.yaml"), &objects::slice("sticky", &name, &pods));
    }
    start(world, &[])?;
    let both: [IpAddr; 2] = ["10.96.0.70".parse()?, "fd96::70".parse()?];
    let mut first = Vec::new();
    for (ip, server) in both.into_iter().zip(["TCP 10.96.0.70:80", "TCP [fd96::70]:80"]) {
        super::becomes(
            || world.servers(),
            |servers| {
                let sticky = |name: &String| name.starts_with(&format!("{server} rr persistent 1"));
                servers.iter().any(|(name, behind)| sticky(name) && behind.len() == 2)
            },
        )?;
        super::becomes(|| world.bound(), |bound| bound.iter().any(|b| b.starts_with(&format!("{ip}/"))))?;
        let to = SocketAddr::new(ip, 80);
        let one = asks(world, to)?;
        for _ in 0..8 {
            let again = asks(world, to)?;
            ensure(again == one, || format!("{to}: first {one}, then {again}"))?;
        }
        first.push((to, one));
    }
    thread::sleep(FORGOTTEN);
    for (to, one) in first {
        // No other client has connected, so round-robin chooses the other endpoint.
        let then = asks(world, to)?;
        ensure(then != one, || format!("{to}: still {then}"))?;
        let again = asks(world, to)?;
        ensure(again == then, || format!("{to}: now {then}, then {again}"))?;
    }
    Ok(())
}
