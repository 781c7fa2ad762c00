//! The iptables mode when its tool is missing, refuses, dies or has to wait.

use crate::agent_lab::{AgentLab, patience};
use crate::faulty_tools::wrap;
use crate::hidden_tools::{hide, unhide_family};
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::process::{Command, Stdio};

pub(crate) const TESTS: &[Test] = &[
    ("missing_iptables_tools_are_named_in_the_error", missing),
    ("without_ip6tables_ipv4_is_programmed", no_ip6tables),
    ("a_kernel_without_ipv6_is_programmed_for_ipv4", no_ipv6),
    ("a_refused_rule_is_logged_with_its_service_nf_tables", |world| refused(world, Nft)),
    ("a_refused_rule_is_logged_with_its_service_legacy", |world| refused(world, Legacy)),
    ("a_restore_killed_half_way_is_completed_nf_tables", |world| killed(world, Nft)),
    ("a_restore_killed_half_way_is_completed_legacy", |world| killed(world, Legacy)),
    ("a_held_xtables_lock_is_awaited_and_its_holder_logged", locked),
];

const PARTIAL_FAILURES: &str =
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv4\"}";
const FAILURES: &str = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";

fn missing(world: &mut AgentLab) -> Outcome {
    let mut command = hide(world, &["--proxy-mode=iptables"])?;
    let output = world.node().run(|| command.output())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(1), || format!("{}: {said}", output.status))?;
    let last = said.lines().last().unwrap_or_default();
    let words = ["portway: ", "iptables-restore", "install the package iptables", "--proxy-mode=nftables"];
    ensure(words.iter().all(|word| last.contains(word)), || format!("not {words:?}: {said}"))
}

/// IPv4 works; IPv6 is not programmed and not waited for.
fn only_ipv4(world: &mut AgentLab) -> Outcome {
    world.reaches("10.96.0.1:80".parse()?, &["pod1a", "pod1b"])?;
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let lines = world.kube_lines(Nft)?;
    let v6 = lines.iter().find(|l| l.starts_with("ip6tables:"));
    ensure(v6.is_none(), || format!("{v6:?}"))?;
    let page = eventually(patience(), || world.health("/healthz"))?;
    let body = page.json()?;
    let families: Vec<&String> = body["status"].as_object().into_iter().flat_map(|s| s.keys()).collect();
    ensure(page.status == 200 && families == ["IPv4"], || body.to_string())
}

fn no_ip6tables(world: &mut AgentLab) -> Outcome {
    let command = hide(world, &["--proxy-mode=iptables"])?;
    unhide_family(world, Nft, "iptables")?;
    world.start_as(command)?;
    world.logged(&["WARN", "only IPv4 is programmed", "ip6tables-nft-save", "install the package"])?;
    only_ipv4(world)
}

/// An empty `/proc` is as good as a kernel without IPv6. Nothing else can be read there either, nor set.
fn no_ipv6(world: &mut AgentLab) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
    command.args([crate::agent_lab::PORTWAY, "proxy", "--proxy-mode=iptables"]).args(world.flags());
    world.start_as(command)?;
    world.logged(&["this kernel has no IPv6, or it is off: only IPv4 is programmed"])?;
    only_ipv4(world)
}

/// A Service with one endpoint.
fn serve(world: &AgentLab, name: &str, ip: &str) -> Outcome {
    world.apply(&format!("{name}.yaml"), &objects::service(name, ip, ""));
    let slice = objects::slice(name, name, &world.pod_ips("pod1b")[..1]);
    world.apply(&format!("{name}-slice.yaml"), &slice);
    Ok(())
}

fn refused(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    serve(world, "bad", "10.96.0.90")?;
    let command = wrap(world, variant)?;
    std::fs::write(world.path("tools/refuse"), "10.96.0.90\n10.96.0.92\n")?;
    world.start_as(command)?;
    let program = format!("{}-restore refused line ", variant.program());
    let line = "-A KUBE-SERVICES -d 10.96.0.90/32";
    world.logged(&["ERROR", "left out", "service=default/bad", &program, line])?;
    world.web_works()?;
    world.reaches_nobody("10.96.0.90:80".parse()?)?;
    // The same in the midst of things, and the others go on.
    serve(world, "good", "10.96.0.91")?;
    world.reaches("10.96.0.91:80".parse()?, &["pod1b"])?;
    ensure(world.metrics()?.value(PARTIAL_FAILURES) == 0.0, || {
        "what was left out was tried again".to_owned()
    })?;
    serve(world, "worse", "10.96.0.92")?;
    serve(world, "better", "10.96.0.93")?;
    world.logged(&["ERROR", "left out", "service=default/worse", "10.96.0.92/32"])?;
    world.reaches("10.96.0.93:80".parse()?, &["pod1b"])?;
    world.web_works()?;
    world.metric(PARTIAL_FAILURES, |n| n >= 1.0)?;
    // When it changes, it is another Service: maybe one that the tool takes.
    serve(world, "bad", "10.96.0.94")?;
    world.reaches("10.96.0.94:80".parse()?, &["pod1b"])?;
    // When it goes, there is nothing left to take away.
    world.delete("worse.yaml");
    serve(world, "last", "10.96.0.95")?;
    world.reaches("10.96.0.95:80".parse()?, &["pod1b"])?;
    ensure(world.metrics()?.value(FAILURES) == 0.0, || "a sync failed altogether".to_owned())?;
    converged(world)
}

/// Started again, it finds nothing to change.
fn converged(world: &mut AgentLab) -> Outcome {
    world.stop()?;
    world.start(&["--proxy-mode=iptables"])?;
    let first = world.logged(&["synced", "family=IPv4"])?;
    ensure(first.contains("added=0 removed=0"), || format!("it had not converged: {first}"))
}

fn killed(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    let command = wrap(world, variant)?;
    std::fs::write(world.path("tools/die"), "")?;
    world.start_as(command)?;
    world.logged(&["ERROR", "ended early (signal: 9", "this is tried again"])?;
    world.web_works()?;
    world.metric(FAILURES, |n| n == 1.0)?;
    // Amid a change that concerns both tables: a Service without endpoints is refused in one, with them it is served
    // in the other.
    world.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    refuses(world, "10.96.0.80:80")?;
    std::fs::write(world.path("tools/die"), "")?;
    serve(world, "late", "10.96.0.80")?;
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    world.logged(&["an incremental change failed", "ended early (signal: 9"])?;
    world.metric(PARTIAL_FAILURES, |n| n == 1.0)?;
    world.web_works()?;
    converged(world)
}

/// Waits until a Service without endpoints is answered with a refusal.
fn refuses(world: &AgentLab, to: &str) -> Outcome {
    let to = to.parse()?;
    eventually(patience(), || {
        let outcome = portway_lab::Probe::tcp(world.client(), to).run();
        if outcome.all_refused() { Ok(()) } else { Err(outcome.to_string()) }
    })?;
    Ok(())
}

/// The lock is the old variant's: the other needs none.
fn locked(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    let lock = world.path("xtables.lock");
    let mut command = wrap(world, Legacy)?;
    // One of its own, lest other tests wait for it.
    command.env("XTABLES_LOCKFILE", &lock);
    std::fs::write(world.path("tools/hurry"), "")?;
    world.start_as(command)?;
    world.web_works()?;
    let mut holder = hold(&lock)?;
    serve(world, "late", "10.96.0.80")?;
    let named = format!("process {} (flock)", holder.id());
    world.logged(&["ERROR", "another program holds the lock on the rules", &named, "tried again"])?;
    for page in [world.health("/healthz")?, world.status("/healthz")?] {
        ensure(page.status == 200, || format!("while the lock is held: {page:?}"))?;
    }
    world.web_works()?;
    ensure(holder.try_wait()?.is_none(), || "nobody held the lock any more".to_owned())?;
    drop(holder.stdin.take());
    holder.wait()?;
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    world.metric(FAILURES, |n| n >= 1.0)?;
    // Waiting is no reason to compare everything.
    let full =
        world.metrics()?.value("kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}");
    ensure(full <= 2.0, || format!("{full} full syncs"))?;
    world.stop().map(drop)
}

/// Holds a lock until its input ends.
fn hold(lock: &std::path::Path) -> Result<std::process::Child, Failed> {
    let mut command = Command::new("flock");
    command.arg(lock).args(["sh", "-c", "echo held && exec cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut held = [0; 5];
    if let Some(output) = &mut child.stdout {
        std::io::Read::read_exact(output, &mut held)?;
    }
    Ok(child)
}
