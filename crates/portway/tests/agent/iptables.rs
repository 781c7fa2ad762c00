//! The iptables mode as an operator meets it: its pages and its metrics, how it ends and begins again.

use crate::agent_lab::AgentLab;
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("metrics_follow_changes_nf_tables", |world| metrics(world, Nft)),
    ("metrics_follow_changes_legacy", |world| metrics(world, Legacy)),
    ("a_restart_adopts_existing_rules_nf_tables", |world| adopts(world, Nft)),
    ("a_restart_adopts_existing_rules_legacy", |world| adopts(world, Legacy)),
    ("rules_stay_when_the_agent_is_killed", killed),
];

/// A series of a family.
fn series(name: &str, labels: &str) -> String {
    format!("kubeproxy_{name}{{{labels}ip_family=\"IPv4\"}}")
}

fn metrics(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    let page = world.status("/proxyMode")?;
    ensure(page.status == 200 && page.body == "iptables", || format!("/proxyMode: {page:?}"))?;
    let [total, last] = ["total", "last"].map(|what| {
        move |table: &str| {
            series(&format!("sync_proxy_rules_iptables_{what}"), &format!("table=\"{table}\","))
        }
    });
    let full = series("sync_full_proxy_rules_duration_seconds_count", "");
    let partial = series("sync_partial_proxy_rules_duration_seconds_count", "");
    let value = |series: &str| -> Result<f64, Failed> { Ok(world.metrics()?.value(series)) };
    // What it says is there is there.
    for table in ["nat", "filter"] {
        let count = rules(world, variant, table)?;
        let said = value(&total(table))?;
        ensure(said == count as f64, || format!("{said} rules in {table}, where there are {count}"))?;
        ensure(value(&last(table))? > 0.0, || format!("the first sync wrote nothing into {table}"))?;
    }
    let lines = |world: &AgentLab| -> Result<Vec<String>, Failed> {
        let mut lines = world.kube_lines(variant)?;
        lines.sort_unstable();
        Ok(lines)
    };
    let lines_before = lines(world)?;
    let [full_before, partial_before, nat_before] = [value(&full)?, value(&partial)?, value(&total("nat"))?];
    ensure(full_before >= 1.0, || "the first sync was not full".to_owned())?;
    // A change is partial, and writes what it takes: the Service's chain and one rule that leads to it.
    world.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    world.apply("late-slice.yaml", &objects::slice("late", "late", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    world.metric(&partial, |n| n > partial_before)?;
    ensure(value(&full)? == full_before, || "a change was a full sync".to_owned())?;
    let now = value(&total("nat"))?;
    ensure(now == nat_before + 4.0, || format!("{nat_before} rules became {now}"))?;
    let count = rules(world, variant, "nat")?;
    ensure(now == count as f64, || format!("{now} rules in nat, where there are {count}"))?;
    let written = value(&last("nat"))?;
    ensure(written <= 4.0, || format!("{written} rules were written for one Service"))?;
    // And away again.
    world.delete("late.yaml");
    world.reaches_nobody("10.96.0.80:80".parse()?)?;
    world.metric(&total("nat"), |n| n == nat_before)?;
    ensure(value(&full)? == full_before, || "a change was a full sync".to_owned())?;
    let lines_after = lines(world)?;
    ensure(lines_after == lines_before, || format!("it was\n{lines_before:#?}\nand is\n{lines_after:#?}"))?;
    for failures in ["restore_failures_total", "partial_restore_failures_total"] {
        let series = series(&format!("sync_proxy_rules_iptables_{failures}"), "");
        ensure(value(&series)? == 0.0, || format!("{failures} without a failure"))?;
    }
    Ok(())
}

/// How many rules of ours a table has, those in everybody's chains included; the martian rule of the kubelet's chain is
/// wanted by us as well, and what leads to it.
fn rules(world: &AgentLab, variant: Variant, table: &str) -> Result<usize, Failed> {
    let text = world.tool("sh", &["-c", &format!("{}-save -t {table}", variant.program())], "")?;
    Ok(text.lines().filter(|l| l.starts_with("-A ") && l.contains("KUBE-")).count())
}

fn adopts(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    world.stop()?;
    let before = world.everything()?;
    world.web_works()?;
    world.start(&["--proxy-mode=iptables"])?;
    for family in ["IPv4", "IPv6"] {
        let first = world.logged(&["synced", &format!("family={family}")])?;
        ensure(first.contains("full=true added=0 removed=0"), || {
            format!("a restart changed something: {first}")
        })?;
    }
    let after = world.everything()?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    // It knows what it has taken over.
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])
}

fn killed(world: &mut AgentLab) -> Outcome {
    world.kubelet(Nft)?;
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    world.kill()?;
    world.web_works()?;
    // What happened in the meantime is caught up with.
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.delete("web-v6.yaml");
    world.start(&["--proxy-mode=iptables"])?;
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    world.reaches(SocketAddr::new(world.node_ips()[0], crate::agent_lab::NODE_PORT), &["pod1b"])?;
    world.reaches_nobody("[fd96::1]:80".parse()?)?;
    let rules = world.save(Nft, "iptables")?;
    ensure(!rules.contains("10.244.1.10"), || format!("left of an endpoint that is gone:\n{rules}"))
}
