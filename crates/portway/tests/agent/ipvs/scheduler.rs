//! The scheduler of virtual servers: configured for all Services, and selected for one Service by its annotation.

use super::{Servers, start, wait_until};
use crate::agent_lab::{AgentLab, answer_timeout, wait_timeout};
use crate::mode_change::HEADER;
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::{Probe, eventually};
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("the_configured_scheduler_is_used_and_can_change", configured),
    ("a_service_may_choose_its_scheduler", annotated),
    ("an_unknown_scheduler_is_logged_and_ignored", unknown),
];

/// All schedulers of the kernel.
const ALL: [&str; 13] =
    ["rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "dh", "mh", "lblc", "lblcr", "fo", "ovf"];
const ANNOTATION: &str = "portway.dev/ipvs-scheduler";

/// The scheduler of a listed server: `mh` in `TCP 10.96.0.1:80 mh (mh-fallback,mh-port)`.
fn scheduler<'a>(servers: &'a Servers, server: &str) -> &'a str {
    let after = |name: &'a String| name.strip_prefix(server).and_then(|rest| rest.strip_prefix(' '));
    servers.keys().find_map(after).and_then(|rest| rest.split(' ').next()).unwrap_or("no such server")
}

/// Waits until a server uses this scheduler.
fn uses(lab: &AgentLab, server: &str, wanted: &str) -> Outcome {
    wait_until(|| lab.servers(), |servers| scheduler(servers, server) == wanted).map(drop)
}

/// A Service with the annotation for a scheduler.
fn with_scheduler(name: &str, ip: &str, scheduler: &str) -> String {
    let annotated = format!("metadata:\n  annotations: {{{ANNOTATION}: '{scheduler}'}}\n");
    objects::service(name, ip, "").replacen("metadata:\n", &annotated, 1)
}

fn configured(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    let config = |scheduler: &str| format!("{HEADER}mode: ipvs\nipvs:\n  scheduler: '{scheduler}'\n");
    lab.write("config.yaml", &config("wlc"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    let node = lab.node_ips();
    for scheduler in ["wlc", "lc", ""] {
        lab.write("config.yaml", &config(scheduler));
        let wanted = if scheduler.is_empty() { "rr" } else { scheduler };
        for server in [
            "TCP 10.96.0.1:80".to_owned(),
            "TCP [fd96::1]:80".to_owned(),
            format!("TCP {}:30001", node[0]),
            format!("TCP [{}]:30001", node[1]),
        ] {
            uses(lab, &server, wanted)?;
        }
        let servers = lab.servers()?;
        let other = servers.keys().find(|name| name.split(' ').nth(2) != Some(wanted));
        ensure(other.is_none(), || format!("{other:?} instead of {wanted}"))?;
        // The real servers stayed.
        let real = lab.real_servers("TCP 10.96.0.1:80")?;
        ensure(real.len() == 2, || format!("real servers with {wanted}: {real:?}"))?;
        lab.web_works()?;
    }
    Ok(())
}

fn annotated(lab: &mut AgentLab) -> Outcome {
    for (i, scheduler) in ALL.iter().enumerate() {
        lab.apply(
            &format!("s{i}.yaml"),
            &with_scheduler(&format!("s{i}"), &format!("10.96.1.{i}"), scheduler),
        );
        let pods = ["pod1a", "pod1b"].map(|pod| lab.pod_ips(pod)[0]);
        let name = format!("s{i}");
        lab.apply(&format!("{name}-slice.yaml"), &objects::slice(&name, &name, &pods));
    }
    start(lab, &["--ipvs-scheduler=wlc"])?;
    for (i, scheduler) in ALL.iter().enumerate() {
        uses(lab, &format!("TCP 10.96.1.{i}:80"), scheduler)?;
    }
    // A Service without the annotation has the configured scheduler.
    uses(lab, "TCP 10.96.0.1:80", "wlc")?;
    for (i, scheduler) in ALL.iter().enumerate() {
        let to = SocketAddr::new([10, 96, 1, i as u8].into(), 80);
        eventually(wait_timeout(), || {
            let outcome = Probe::tcp(lab.client(), to).count(8).timeout(answer_timeout()).run();
            // Some schedulers balance the connections of one client over all endpoints, the others do not.
            let least = if ["rr", "wrr", "lc", "wlc", "sed", "nq", "mh"].contains(scheduler) { 2 } else { 1 };
            if outcome.all_answered() && outcome.servers().len() >= least {
                return Ok(());
            }
            Err(format!("{scheduler}: {outcome}"))
        })?;
    }
    // The annotation is changed and removed while the agent runs.
    lab.apply("s0.yaml", &with_scheduler("s0", "10.96.1.0", "sh"));
    uses(lab, "TCP 10.96.1.0:80", "sh")?;
    lab.apply("s0.yaml", &objects::service("s0", "10.96.1.0", ""));
    uses(lab, "TCP 10.96.1.0:80", "wlc")?;
    lab.apply("s1.yaml", &with_scheduler("s1", "10.96.1.1", "rr"));
    uses(lab, "TCP 10.96.1.1:80", "rr")
}

fn unknown(lab: &mut AgentLab) -> Outcome {
    let pods = ["pod1a", "pod1b"].map(|pod| lab.pod_ips(pod)[0]);
    lab.apply("odd.yaml", &with_scheduler("odd", "10.96.1.99", "random"));
    lab.apply("odd-slice.yaml", &objects::slice("odd", "odd", &pods));
    start(lab, &[])?;
    let line = lab.logged(&["WARN", "default/odd", ANNOTATION, "\"random\"", "rr is used instead"])?;
    ensure(ALL.iter().all(|name| line.contains(name)), || {
        format!("the log does not list the schedulers: {line}")
    })?;
    uses(lab, "TCP 10.96.1.99:80", "rr")?;
    lab.reaches("10.96.1.99:80".parse()?, &["pod1a", "pod1b"])?;
    lab.web_works()?;
    // A valid scheduler, then an invalid one again.
    lab.apply("odd.yaml", &with_scheduler("odd", "10.96.1.99", "lc"));
    uses(lab, "TCP 10.96.1.99:80", "lc")?;
    lab.apply("odd.yaml", &with_scheduler("odd", "10.96.1.99", "RR"));
    lab.logged(&["WARN", "default/odd", ANNOTATION, "\"RR\"", "rr is used instead"])?;
    uses(lab, "TCP 10.96.1.99:80", "rr")?;
    lab.reaches("10.96.1.99:80".parse()?, &["pod1a", "pod1b"])
}
