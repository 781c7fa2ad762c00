//! Stops, kills and restarts of the agent.

use crate::agent_lab::{AgentLab, WEB, wait_timeout};
use crate::http::Page;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::eventually;
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("cleanup_refuses_while_an_agent_runs", cleanup_refuses),
    ("a_second_agent_stands_back_until_the_first_ends", another_agent),
    ("an_agent_stands_back_while_kube_proxy_runs", behind_kube_proxy),
    ("an_agent_goes_on_beside_a_kube_proxy_that_starts_later", beside_kube_proxy),
    ("sigterm_ends_the_agent_and_rules_stay", |lab| signalled(lab, Signal::TERM)),
    ("sigint_ends_the_agent_and_rules_stay", |lab| signalled(lab, Signal::INT)),
    ("a_restart_adopts_existing_rules", restart),
    ("an_agent_killed_during_changes_converges_after_restart", killed),
];

fn signalled(lab: &mut AgentLab, signal: Signal) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let before = lab.nft(&["-a", "list", "ruleset"])?;
    lab.agent()?.signal(signal)?;
    lab.logged(&["stopping; the rules stay in place"])?;
    lab.stop()?;
    let after = lab.nft(&["-a", "list", "ruleset"])?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    lab.web_works()
}

fn restart(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let first = first_sync(lab)?;
    ensure(!first.contains("added=0"), || format!("the first start added nothing: {first}"))?;
    lab.stop()?;
    let before = lab.nft(&["-a", "list", "ruleset"])?;
    lab.start(&[])?;
    let second = first_sync(lab)?;
    let nothing = ["full=true", "added=0", "removed=0"];
    ensure(nothing.iter().all(|word| second.contains(word)), || {
        format!("a restart changed something: {second}")
    })?;
    let after = lab.nft(&["-a", "list", "ruleset"])?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    // The adopted rules are changed correctly.
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])
}

fn first_sync(lab: &mut AgentLab) -> Result<String, libtest_mimic::Failed> {
    lab.logged(&["synced", "family=\"IPv4\""])
}

fn killed(lab: &mut AgentLab) -> Outcome {
    for turn in 0..3 {
        lab.start(&[])?;
        churn(lab, |lab| {
            // After a different number of syncs each time.
            let syncs = 5 + 7 * turn;
            lab.metric("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}", |n| {
                n >= f64::from(syncs)
            })?;
            lab.kill()
        })?;
    }
    lab.delete("busy.yaml");
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.start(&[])?;
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    lab.reaches_no_pod("10.96.0.70:80".parse()?)?;
    let first = first_sync(lab)?;
    ensure(first.contains("full=true"), || format!("the first sync was not a full one: {first}"))?;
    let left = lab.nft(&["list", "table", "ip", "portway"])?;
    ensure(!left.contains("10.96.0.70"), || format!("rules of a deleted Service are left:\n{left}"))?;
    // Another start finds no missing and no superfluous rules.
    lab.stop()?;
    lab.start(&[])?;
    let again = first_sync(lab)?;
    ensure(again.contains("added=0") && again.contains("removed=0"), || {
        format!("the rules had not converged: {again}")
    })
}

/// Changes the endpoints of `web` and the external IPs of a Service `busy` again and again while `meanwhile` runs.
fn churn(lab: &mut AgentLab, meanwhile: impl FnOnce(&mut AgentLab) -> Outcome) -> Outcome {
    let pods = ["pod1a", "pod1b"].map(|pod| lab.pod_ips(pod)[0]);
    let directory = lab.path("manifests");
    let over = AtomicBool::new(false);
    let write = |name: &str, text: &str| {
        // Like AgentLab::write, whose temporary file another thread may use at the same time.
        let next = directory.join(format!(".{name}"));
        std::fs::write(&next, text).and_then(|()| std::fs::rename(next, directory.join(name)))
    };
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> std::io::Result<()> {
            for turn in 0.. {
                write("web-v4.yaml", &objects::slice("web", "web-v4", &pods[..1 + turn % 2]))?;
                let spec = if turn % 3 == 0 { "" } else { "externalIPs: ['203.0.113.9']" };
                write("busy.yaml", &objects::service("busy", "10.96.0.70", spec))?;
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        });
        let outcome = meanwhile(lab);
        over.store(true, Ordering::Relaxed);
        match writer.join() {
            Ok(written) => written?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        outcome
    })
}

fn cleanup_refuses(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=nftables"])?;
    lab.web_works()?;
    let output = lab.portway(&["cleanup"])?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = message.contains("an agent runs in this network namespace") && message.contains("--force");
    ensure(!output.status.success() && refused, || message)?;
    lab.web_works()?;
    let output = lab.portway(&["cleanup", "--force"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    lab.logged(&["repaired rules that another process had changed"])?;
    lab.web_works()
}

fn another_agent(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=nftables"])?;
    lab.web_works()?;
    let mut second = std::process::Command::new(env!("CARGO_BIN_EXE_portway"));
    second.arg("proxy").args(lab.flags()).args([
        "--proxy-mode=nftables",
        "--healthz-bind-address=",
        "--metrics-bind-address=127.0.0.1:10349",
    ]);
    second.stderr(std::process::Stdio::null());
    let mut second = lab.node().spawn(second)?;
    let metrics = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10349);
    let others = |lab: &AgentLab, count: u8| {
        eventually(wait_timeout(), || {
            let page = Page::get(lab.node(), metrics, "/metrics")?;
            let wanted = format!("portway_other_agents {count}");
            if page.body.lines().any(|line| line == wanted) { Ok(()) } else { Err(format!("not {wanted}")) }
        })
    };
    others(lab, 1)?;
    // It repairs nothing, and applies no change: the first agent does.
    let before = lab.agent()?.log().count("repaired rules");
    lab.nft(&["delete", "table", "ip", "portway"])?;
    lab.web_works()?;
    crate::mode_change::follows_changes(lab)?;
    let after = lab.agent()?.log().count("repaired rules");
    ensure(after > before, || "the first agent did not repair the rules".to_owned())?;
    let rules = |lab: &AgentLab| lab.nft(&["list", "table", "ip", "portway"]);
    lab.kill()?;
    lab.nft(&["delete", "table", "ip", "portway"])?;
    // With the first agent gone, the second one programs the node.
    others(lab, 0)?;
    lab.web_works()?;
    rules(lab)?;
    second.child().kill()?;
    second.wait()?;
    Ok(())
}

/// A process with the name of kube-proxy, on the node.
fn start_kube_proxy(lab: &AgentLab) -> Result<portway_lab::Process, libtest_mimic::Failed> {
    let program = lab.path("kube-proxy");
    // The name of a process is that of the path that was executed. A copy could still be open for writing in a process
    // that another test has just forked.
    std::os::unix::fs::symlink("/bin/sleep", &program)?;
    let mut kube_proxy = std::process::Command::new(&program);
    kube_proxy.arg0("sleep").arg("600");
    Ok(lab.node().spawn(kube_proxy)?)
}

fn beside_kube_proxy(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=nftables"])?;
    // Leftovers are removed before that line.
    lab.logged(&["synced", "endpoints in"])?;
    lab.nft(&["add", "table", "ip", "kube-proxy"])?;
    let mut kube_proxy = start_kube_proxy(lab)?;
    let process = format!("kube-proxy (process {})", kube_proxy.child().id());
    lab.logged(&[
        "ERROR",
        &process,
        "was started on this node",
        "table ip kube-proxy",
        "stop one of the two",
    ])?;
    lab.metric("portway_other_agents", |others| others == 1.0)?;
    crate::mode_change::follows_changes(lab)?;
    lab.web_works()?;
    kube_proxy.child().kill()?;
    kube_proxy.wait()?;
    lab.logged(&[&process, "has ended"])?;
    // What it left is removed.
    lab.logged(&["removed leftovers of a previous proxy mode", "table ip kube-proxy"])?;
    lab.metric("portway_other_agents", |others| others == 0.0).map(drop)
}

fn behind_kube_proxy(lab: &mut AgentLab) -> Outcome {
    let mut kube_proxy = start_kube_proxy(lab)?;
    let process = kube_proxy.child().id();
    lab.start(&["--proxy-mode=nftables"])?;
    lab.logged(&["ERROR", &format!("kube-proxy (process {process})"), "this agent stands back"])?;
    lab.metric("portway_other_agents", |others| others == 1.0)?;
    lab.reaches_no_pod(SocketAddr::new(WEB[0], 80))?;
    let tables = lab.nft(&["list", "tables"])?;
    ensure(!tables.contains("portway"), || format!("the agent created tables:\n{tables}"))?;
    kube_proxy.child().kill()?;
    kube_proxy.wait()?;
    lab.logged(&["has ended: this agent programs the Services of this node"])?;
    lab.web_works()?;
    lab.metric("portway_other_agents", |others| others == 0.0).map(drop)
}
