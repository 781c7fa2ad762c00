//! The iptables mode when its tool is missing, rejects a rule, is killed or waits for a lock.

use crate::agent_lab::{AgentLab, wait_timeout};
use crate::faulty_tools::wrap;
use crate::hidden_tools::{agent_without_tools, install_family};
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::process::{Command, Stdio};

pub(crate) const TESTS: &[Test] = &[
    ("missing_iptables_tools_are_named_in_the_error", missing_tools),
    ("without_ip6tables_ipv4_is_programmed", without_ip6tables),
    ("a_kernel_without_ipv6_is_programmed_for_ipv4", kernel_without_ipv6),
    ("a_refused_rule_is_logged_with_its_service_nf_tables", |lab| refused(lab, Nft)),
    ("a_refused_rule_is_logged_with_its_service_legacy", |lab| refused(lab, Legacy)),
    ("a_restore_killed_half_way_is_completed_nf_tables", |lab| killed(lab, Nft)),
    ("a_restore_killed_half_way_is_completed_legacy", |lab| killed(lab, Legacy)),
    ("a_held_xtables_lock_is_awaited_and_its_holder_logged", locked),
];

const PARTIAL_FAILURES: &str =
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv4\"}";
const FAILURES: &str = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";

fn missing_tools(lab: &mut AgentLab) -> Outcome {
    let mut command = agent_without_tools(lab, &["--proxy-mode=iptables"])?;
    let output = lab.node().run(|| command.output())?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(1), || format!("{}: {stderr}", output.status))?;
    let last = stderr.lines().last().unwrap_or_default();
    let words = ["portway: ", "iptables-restore", "install the package iptables", "--proxy-mode=nftables"];
    ensure(words.iter().all(|word| last.contains(word)), || format!("no {words:?} in: {stderr}"))
}

/// Checks that IPv4 works, and that IPv6 is neither programmed nor part of the health check.
fn only_ipv4(lab: &mut AgentLab) -> Outcome {
    lab.reaches("10.96.0.1:80".parse()?, &["pod1a", "pod1b"])?;
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let lines = lab.kube_lines(Nft)?;
    let v6 = lines.iter().find(|l| l.starts_with("ip6tables:"));
    ensure(v6.is_none(), || format!("{v6:?}"))?;
    let page = eventually(wait_timeout(), || lab.health("/healthz"))?;
    let body = page.json()?;
    let families: Vec<&String> = body["status"].as_object().into_iter().flat_map(|s| s.keys()).collect();
    ensure(page.status == 200 && families == ["IPv4"], || body.to_string())
}

fn without_ip6tables(lab: &mut AgentLab) -> Outcome {
    let command = agent_without_tools(lab, &["--proxy-mode=iptables"])?;
    install_family(lab, Nft, "iptables")?;
    lab.start_as(command)?;
    lab.logged(&["WARN", "only IPv4 is programmed", "ip6tables-nft-save", "install the package"])?;
    only_ipv4(lab)
}

/// A kernel without IPv6 has no `/proc/net/if_inet6`. The test hides all of `/proc`, so sysctls cannot be read or set
/// either.
fn kernel_without_ipv6(lab: &mut AgentLab) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
    command.args([crate::agent_lab::PORTWAY, "proxy", "--proxy-mode=iptables"]).args(lab.flags());
    lab.start_as(command)?;
    lab.logged(&["this kernel has no IPv6, or it is off: only IPv4 is programmed"])?;
    only_ipv4(lab)
}

/// Applies a Service with one endpoint.
fn serve(lab: &AgentLab, name: &str, ip: &str) -> Outcome {
    lab.apply(&format!("{name}.yaml"), &objects::service(name, ip, ""));
    let slice = objects::slice(name, name, &lab.pod_ips("pod1b")[..1]);
    lab.apply(&format!("{name}-slice.yaml"), &slice);
    Ok(())
}

fn refused(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    serve(lab, "refused", "10.96.0.90")?;
    let command = wrap(lab, variant)?;
    std::fs::write(lab.path("tools/refuse"), "10.96.0.90\n10.96.0.92\n")?;
    lab.start_as(command)?;
    let program = format!("{}-restore refused line ", variant.program());
    let line = "-A KUBE-SERVICES -d 10.96.0.90/32";
    lab.logged(&["ERROR", "left out", "Service default/refused:", &program, line])?;
    lab.web_works()?;
    lab.reaches_no_pod("10.96.0.90:80".parse()?)?;
    // A rule that is refused later does not affect other Services either.
    serve(lab, "accepted", "10.96.0.91")?;
    lab.reaches("10.96.0.91:80".parse()?, &["pod1b"])?;
    ensure(lab.metrics()?.value(PARTIAL_FAILURES) == 0.0, || "the refused rule was tried again".to_owned())?;
    serve(lab, "refused-later", "10.96.0.92")?;
    serve(lab, "accepted-later", "10.96.0.93")?;
    lab.logged(&["ERROR", "left out", "Service default/refused-later:", "10.96.0.92/32"])?;
    lab.reaches("10.96.0.93:80".parse()?, &["pod1b"])?;
    lab.web_works()?;
    lab.metric(PARTIAL_FAILURES, |n| n >= 1.0)?;
    // A changed Service is tried again.
    serve(lab, "refused", "10.96.0.94")?;
    lab.reaches("10.96.0.94:80".parse()?, &["pod1b"])?;
    // Deleting the Service does not fail, though its rules do not exist.
    lab.delete("refused-later.yaml");
    serve(lab, "last", "10.96.0.95")?;
    lab.reaches("10.96.0.95:80".parse()?, &["pod1b"])?;
    ensure(lab.metrics()?.value(FAILURES) == 0.0, || "a full sync failed".to_owned())?;
    converged(lab)
}

/// Checks that a restarted agent finds nothing to change.
fn converged(lab: &mut AgentLab) -> Outcome {
    lab.stop()?;
    lab.start(&["--proxy-mode=iptables"])?;
    let first = lab.logged(&["synced", "family=\"IPv4\""])?;
    ensure(first.contains("added=0 removed=0"), || format!("the rules had not converged: {first}"))
}

fn killed(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    let command = wrap(lab, variant)?;
    std::fs::write(lab.path("tools/die"), "")?;
    lab.start_as(command)?;
    lab.logged(&["ERROR", "ended early (signal: 9", "the sync is retried"])?;
    lab.web_works()?;
    lab.metric(FAILURES, |n| n == 1.0)?;
    // During a change of both tables: a Service without endpoints is rejected in filter; with endpoints it has chains
    // in nat.
    lab.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    refuses(lab, "10.96.0.80:80")?;
    std::fs::write(lab.path("tools/die"), "")?;
    serve(lab, "late", "10.96.0.80")?;
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    lab.logged(&["an incremental change failed", "ended early (signal: 9"])?;
    lab.metric(PARTIAL_FAILURES, |n| n == 1.0)?;
    lab.web_works()?;
    converged(lab)
}

/// Waits until connections to a Service without endpoints are refused.
fn refuses(lab: &AgentLab, to: &str) -> Outcome {
    let to = to.parse()?;
    eventually(wait_timeout(), || {
        let outcome = portway_lab::Probe::tcp(lab.client(), to).run();
        if outcome.all_refused() { Ok(()) } else { Err(outcome.to_string()) }
    })?;
    Ok(())
}

/// Only the legacy variant uses the lock.
fn locked(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    let lock = lab.path("xtables.lock");
    let mut command = wrap(lab, Legacy)?;
    // A separate lock file, so that other tests do not wait for it.
    command.env("XTABLES_LOCKFILE", &lock);
    std::fs::write(lab.path("tools/hurry"), "")?;
    lab.start_as(command)?;
    lab.web_works()?;
    let mut holder = hold(&lock)?;
    serve(lab, "late", "10.96.0.80")?;
    let named = format!("process {} (flock)", holder.id());
    lab.logged(&["ERROR", "another program holds the lock on the rules", &named, "the sync is retried"])?;
    for page in [lab.health("/healthz")?, lab.status("/healthz")?] {
        ensure(page.status == 200, || format!("while the lock is held: {page:?}"))?;
    }
    lab.web_works()?;
    ensure(holder.try_wait()?.is_none(), || "the lock was released too early".to_owned())?;
    drop(holder.stdin.take());
    holder.wait()?;
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    lab.metric(FAILURES, |n| n >= 1.0)?;
    // A held lock does not cause full syncs.
    let full =
        lab.metrics()?.value("kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}");
    ensure(full <= 2.0, || format!("{full} full syncs"))?;
    lab.stop().map(drop)
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
