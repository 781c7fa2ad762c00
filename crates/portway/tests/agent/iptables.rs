//! The iptables mode: its status page and metrics, and restarts.

use crate::agent_lab::AgentLab;
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("metrics_follow_changes_nf_tables", |lab| metrics(lab, Nft)),
    ("metrics_follow_changes_legacy", |lab| metrics(lab, Legacy)),
    ("a_restart_adopts_existing_rules_nf_tables", |lab| restart(lab, Nft)),
    ("a_restart_adopts_existing_rules_legacy", |lab| restart(lab, Legacy)),
    ("rules_stay_when_the_agent_is_killed", killed),
    ("cleanup_removes_hundreds_of_chains_nf_tables", |lab| many_chains(lab, Nft)),
    ("cleanup_removes_hundreds_of_chains_legacy", |lab| many_chains(lab, Legacy)),
];

/// The chains of kube-proxy for so many Services that they are removed by netlink, beside those of another program. They are
/// written in parts, since an ordinary user's tool has a small send buffer.
fn many_chains(lab: &mut AgentLab, variant: Variant) -> Outcome {
    use std::fmt::Write;
    let restore = |rules: &str| {
        let text = format!("*nat\n{rules}COMMIT\n");
        lab.tool(&format!("{}-restore", variant.of("iptables")), &["--noflush"], &text).map(drop)
    };
    restore(
        ":KUBE-SERVICES - [0:0]\n:OTHERS - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A PREROUTING -j OTHERS\n-A OTHERS -j RETURN\n",
    )?;
    // The names end in 16 digits of base 32.
    let letters = |n: i32| format!("{n:016}").bytes().map(|digit| char::from(digit - b'0' + b'A')).collect();
    let names: Vec<String> =
        (0..400).map(|n| -> String { letters(n) }).map(|n| format!("KUBE-SVC-{n}")).collect();
    for (n, part) in names.chunks(50).enumerate() {
        let mut rules = String::new();
        for name in part {
            writeln!(rules, ":{name} - [0:0]")?;
        }
        for (m, name) in part.iter().enumerate() {
            writeln!(rules, "-A KUBE-SERVICES -d 10.97.{n}.{m}/32 -j {name}\n-A {name} -j RETURN")?;
        }
        restore(&rules)?;
    }
    let output = lab.portway(&["cleanup"])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success(), || format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?;
    let counts = ["401 chains", "400 chains of Services"];
    ensure(counts.iter().any(|count| text.contains(count)), || format!("no number of chains in: {text}"))?;
    let left = lab.save(variant, "iptables")?;
    ensure(!left.contains("KUBE-"), || format!("chains are left:\n{left}"))?;
    ensure(left.contains("-A OTHERS -j RETURN") && left.contains("-A PREROUTING -j OTHERS"), || {
        format!("the rules of another program were removed:\n{left}")
    })
}

/// A series of a family.
fn series(name: &str, labels: &str) -> String {
    format!("kubeproxy_{name}{{{labels}ip_family=\"IPv4\"}}")
}

fn metrics(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    let page = lab.status("/proxyMode")?;
    ensure(page.status == 200 && page.body == "iptables", || format!("/proxyMode: {page:?}"))?;
    let [total, last] = ["total", "last"].map(|suffix| {
        move |table: &str| {
            series(&format!("sync_proxy_rules_iptables_{suffix}"), &format!("table=\"{table}\","))
        }
    });
    let full = series("sync_full_proxy_rules_duration_seconds_count", "");
    let partial = series("sync_partial_proxy_rules_duration_seconds_count", "");
    let value = |series: &str| -> Result<f64, Failed> { Ok(lab.metrics()?.value(series)) };
    // The metrics agree with the kernel.
    for table in ["nat", "filter"] {
        let count = rules(lab, variant, table)?;
        let reported = value(&total(table))?;
        ensure(reported == count as f64, || {
            format!("{reported} rules in {table} are reported; there are {count}")
        })?;
        ensure(value(&last(table))? > 0.0, || format!("the first sync wrote no rules into {table}"))?;
    }
    let lines = |lab: &AgentLab| -> Result<Vec<String>, Failed> {
        let mut lines = lab.kube_lines(variant)?;
        lines.sort_unstable();
        Ok(lines)
    };
    let lines_before = lines(lab)?;
    let [full_before, partial_before, nat_before] = [value(&full)?, value(&partial)?, value(&total("nat"))?];
    ensure(full_before >= 1.0, || "the first sync was not full".to_owned())?;
    // A change is a partial sync, which writes only the rules of the Service's chains and the rule that jumps to them.
    lab.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    lab.metric(&partial, |n| n > partial_before)?;
    ensure(value(&full)? == full_before, || "a change was a full sync".to_owned())?;
    let now = value(&total("nat"))?;
    ensure(now == nat_before + 4.0, || format!("{nat_before} rules became {now}"))?;
    let count = rules(lab, variant, "nat")?;
    ensure(now == count as f64, || format!("{now} rules in nat are reported; there are {count}"))?;
    let written = value(&last("nat"))?;
    ensure(written <= 4.0, || format!("{written} rules were written for one Service"))?;
    // The Service is deleted.
    lab.delete("late.yaml");
    lab.reaches_no_pod("10.96.0.80:80".parse()?)?;
    lab.metric(&total("nat"), |n| n == nat_before)?;
    ensure(value(&full)? == full_before, || "a change was a full sync".to_owned())?;
    let lines_after = lines(lab)?;
    ensure(lines_after == lines_before, || format!("it was\n{lines_before:#?}\nand is\n{lines_after:#?}"))?;
    for failures in ["restore_failures_total", "partial_restore_failures_total"] {
        let series = series(&format!("sync_proxy_rules_iptables_{failures}"), "");
        ensure(value(&series)? == 0.0, || format!("{failures} without a failure"))?;
    }
    Ok(())
}

/// The number of Portway's rules in a table, including its rules in the built-in chains. Portway needs the kubelet's
/// rule against martian packets and the jumps to it as well, so these are counted too.
fn rules(lab: &AgentLab, variant: Variant, table: &str) -> Result<usize, Failed> {
    let text = lab.tool("sh", &["-c", &format!("{}-save -t {table}", variant.program())], "")?;
    // KUBE-FIREWALL is the kubelet's.
    let is_counted = |l: &&str| l.starts_with("-A ") && l.contains("KUBE-") && !l.contains("KUBE-FIREWALL");
    Ok(text.lines().filter(is_counted).count())
}

fn restart(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    lab.stop()?;
    let before = lab.everything()?;
    lab.web_works()?;
    lab.start(&["--proxy-mode=iptables"])?;
    for family in ["IPv4", "IPv6"] {
        let first = lab.logged(&["synced", &format!("family=\"{family}\"")])?;
        ensure(first.contains("full=true added=0 removed=0"), || {
            format!("a restart changed something: {first}")
        })?;
    }
    let after = lab.everything()?;
    ensure(before == after, || format!("it was\n{before}\nand is\n{after}"))?;
    // The adopted rules are changed correctly.
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])
}

fn killed(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Nft)?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    lab.kill()?;
    lab.web_works()?;
    // Changes that happen while no agent runs are applied at the next start.
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.delete("web-v6.yaml");
    lab.start(&["--proxy-mode=iptables"])?;
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    lab.reaches(SocketAddr::new(lab.node_ips()[0], crate::agent_lab::NODE_PORT), &["pod1b"])?;
    lab.reaches_no_pod("[fd96::1]:80".parse()?)?;
    let rules = lab.save(Nft, "iptables")?;
    ensure(!rules.contains("10.244.1.10"), || format!("rules of a removed endpoint are left:\n{rules}"))
}
