//! How a server chooses: for all Services by the configuration, for one by its annotation.

use super::{Servers, becomes, start};
use crate::agent_lab::{AgentLab, answer, patience};
use crate::mode_change::HEADER;
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Probe, eventually};
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("the_configured_scheduler_is_used_and_can_change", configured),
    ("a_service_may_choose_its_scheduler", own),
    ("an_unknown_scheduler_is_logged_and_ignored", nonsense),
];

/// All that the kernel has.
const ALL: [&str; 13] =
    ["rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "dh", "mh", "lblc", "lblcr", "fo", "ovf"];
const ANNOTATION: &str = "portway.dev/ipvs-scheduler";

/// What a server's name ends with: `TCP 10.96.0.1:80 mh (mh-fallback,mh-port)`.
fn scheduler<'a>(servers: &'a Servers, server: &str) -> &'a str {
    let after = |name: &'a String| name.strip_prefix(server).and_then(|rest| rest.strip_prefix(' '));
    servers.keys().find_map(after).and_then(|rest| rest.split(' ').next()).unwrap_or("nobody")
}

/// Waits until a server uses this one.
fn uses(world: &AgentLab, server: &str, wanted: &str) -> Outcome {
    becomes(|| world.servers(), |servers| scheduler(servers, server) == wanted).map(drop)
}

/// A Service that asks for one.
fn asking(name: &str, ip: &str, scheduler: &str) -> String {
    let annotated = format!("metadata:\n  annotations: {{{ANNOTATION}: '{scheduler}'}}\n");
    objects::service(name, ip, "").replacen("metadata:\n", &annotated, 1)
}

fn configured(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    let config = |scheduler: &str| format!("{HEADER}mode: ipvs\nipvs:\n  scheduler: '{scheduler}'\n");
    world.write("config.yaml", &config("wlc"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    let node = world.node_ips();
    for scheduler in ["wlc", "lc", ""] {
        world.write("config.yaml", &config(scheduler));
        let wanted = if scheduler.is_empty() { "rr" } else { scheduler };
        for server in [
            "TCP 10.96.0.1:80".to_owned(),
            "TCP [fd96::1]:80".to_owned(),
            format!("TCP {}:30001", node[0]),
            format!("TCP [{}]:30001", node[1]),
        ] {
            uses(world, &server, wanted)?;
        }
        let servers = world.servers()?;
        let other = servers.keys().find(|name| name.split(' ').nth(2) != Some(wanted));
        ensure(other.is_none(), || format!("{other:?} when it is {wanted}"))?;
        // Those behind it stayed.
        let behind = world.behind("TCP 10.96.0.1:80")?;
        ensure(behind.len() == 2, || format!("{behind:?} behind it when it is {wanted}"))?;
        world.web_works()?;
    }
    Ok(())
}

fn own(world: &mut AgentLab) -> Outcome {
    for (i, scheduler) in ALL.iter().enumerate() {
        world.apply(&format!("s{i}.yaml"), &asking(&format!("s{i}"), &format!("10.96.1.{i}"), scheduler));
        let pods = ["pod1a", "pod1b"].map(|pod| world.pod_ips(pod)[0]);
        let name = format!("s{i}");
        world.apply(&format!("{name}-slice.yaml"), &objects::slice(&name, &name, &pods));
    }
    start(world, &["--ipvs-scheduler=wlc"])?;
    for (i, scheduler) in ALL.iter().enumerate() {
        uses(world, &format!("TCP 10.96.1.{i}:80"), scheduler)?;
    }
    // A Service without the annotation has the configured scheduler.
    uses(world, "TCP 10.96.0.1:80", "wlc")?;
    for (i, scheduler) in ALL.iter().enumerate() {
        let to = SocketAddr::new([10, 96, 1, i as u8].into(), 80);
        eventually(patience(), || {
            let outcome = Probe::tcp(world.client(), to).count(8).timeout(answer()).run();
            // One client is led to one endpoint by some, and to all by others.
            let least = if ["rr", "wrr", "lc", "wlc", "sed", "nq", "mh"].contains(scheduler) { 2 } else { 1 };
            if outcome.all_answered() && outcome.servers().len() >= least {
                return Ok(());
            }
            Err(format!("{scheduler}: {outcome}"))
        })?;
    }
    // Another one, and none, while it runs.
    world.apply("s0.yaml", &asking("s0", "10.96.1.0", "sh"));
    uses(world, "TCP 10.96.1.0:80", "sh")?;
    world.apply("s0.yaml", &objects::service("s0", "10.96.1.0", ""));
    uses(world, "TCP 10.96.1.0:80", "wlc")?;
    world.apply("s1.yaml", &asking("s1", "10.96.1.1", "rr"));
    uses(world, "TCP 10.96.1.1:80", "rr")
}

fn nonsense(world: &mut AgentLab) -> Outcome {
    let pods = ["pod1a", "pod1b"].map(|pod| world.pod_ips(pod)[0]);
    world.apply("odd.yaml", &asking("odd", "10.96.1.99", "random"));
    world.apply("odd-slice.yaml", &objects::slice("odd", "odd", &pods));
    start(world, &[])?;
    let line = world.logged(&["WARN", "default/odd", ANNOTATION, "\"random\"", "rr is used instead"])?;
    ensure(ALL.iter().all(|name| line.contains(name)), || format!("it does not say what there is: {line}"))?;
    uses(world, "TCP 10.96.1.99:80", "rr")?;
    world.reaches("10.96.1.99:80".parse()?, &["pod1a", "pod1b"])?;
    world.web_works()?;
    // Mended, and broken again.
    world.apply("odd.yaml", &asking("odd", "10.96.1.99", "lc"));
    uses(world, "TCP 10.96.1.99:80", "lc")?;
    world.apply("odd.yaml", &asking("odd", "10.96.1.99", "RR"));
    world.logged(&["WARN", "default/odd", ANNOTATION, "\"RR\"", "rr is used instead"])?;
    uses(world, "TCP 10.96.1.99:80", "rr")?;
    world.reaches("10.96.1.99:80".parse()?, &["pod1a", "pod1b"])
}
