//! The end and the restart of the agent.

use crate::agent_lab::AgentLab;
use crate::{Outcome, Test, ensure, objects};
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("sigterm_ends_the_agent_and_rules_stay", |world| ends(world, Signal::TERM)),
    ("sigint_ends_the_agent_and_rules_stay", |world| ends(world, Signal::INT)),
    ("a_restart_adopts_existing_rules", adopts),
    ("an_agent_killed_during_changes_converges_after_restart", killed),
];

fn ends(world: &mut AgentLab, signal: Signal) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let before = world.nft(&["-a", "list", "ruleset"])?;
    world.agent()?.signal(signal)?;
    world.logged(&["stopping; the rules stay in place"])?;
    world.stop()?;
    let after = world.nft(&["-a", "list", "ruleset"])?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    world.web_works()
}

fn adopts(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let first = first_sync(world)?;
    ensure(!first.contains("added=0"), || format!("the first start added nothing: {first}"))?;
    world.stop()?;
    let before = world.nft(&["-a", "list", "ruleset"])?;
    world.start(&[])?;
    let second = first_sync(world)?;
    let nothing = ["full=true", "added=0", "removed=0"];
    ensure(nothing.iter().all(|word| second.contains(word)), || {
        format!("a restart changed something: {second}")
    })?;
    let after = world.nft(&["-a", "list", "ruleset"])?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    // The adopted rules are changed correctly.
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])
}

fn first_sync(world: &mut AgentLab) -> Result<String, libtest_mimic::Failed> {
    world.logged(&["synced", "family=IPv4"])
}

fn killed(world: &mut AgentLab) -> Outcome {
    for turn in 0..3 {
        world.start(&[])?;
        churn(world, |world| {
            // After another number of syncs each turn.
            let syncs = 5 + 7 * turn;
            world.metric("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}", |n| {
                n >= f64::from(syncs)
            })?;
            world.kill()
        })?;
    }
    world.delete("busy.yaml");
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.start(&[])?;
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    world.reaches_nobody("10.96.0.70:80".parse()?)?;
    let first = first_sync(world)?;
    ensure(first.contains("full=true"), || format!("the first sync did not look at the kernel: {first}"))?;
    let left = world.nft(&["list", "table", "ip", "portway"])?;
    ensure(!left.contains("10.96.0.70"), || format!("left of a Service that is gone:\n{left}"))?;
    // Once more from there: all that is wanted is there, and nothing else.
    world.stop()?;
    world.start(&[])?;
    let again = first_sync(world)?;
    ensure(again.contains("added=0") && again.contains("removed=0"), || {
        format!("it had not converged: {again}")
    })
}

/// While `meanwhile` happens, endpoints of `web` come and go, and so does a Service.
fn churn(world: &mut AgentLab, meanwhile: impl FnOnce(&mut AgentLab) -> Outcome) -> Outcome {
    let pods = ["pod1a", "pod1b"].map(|pod| world.pod_ips(pod)[0]);
    let folder = world.path("manifests");
    let over = AtomicBool::new(false);
    let write = |name: &str, text: &str| {
        // The same way as AgentLab::write, whose name another thread would be using.
        let next = folder.join(format!(".{name}"));
        std::fs::write(&next, text).and_then(|()| std::fs::rename(next, folder.join(name)))
    };
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> std::io::Result<()> {
            for turn in 0.. {
                write("web-v4.yaml", &objects::slice("web", "web-v4", &pods[..1 + turn % 2]))?;
                let ports = if turn % 3 == 0 { "" } else { "externalIPs: ['203.0.113.9']" };
                write("busy.yaml", &objects::service("busy", "10.96.0.70", ports))?;
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        });
        let outcome = meanwhile(world);
        over.store(true, Ordering::Relaxed);
        match writer.join() {
            Ok(written) => written?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        outcome
    })
}
