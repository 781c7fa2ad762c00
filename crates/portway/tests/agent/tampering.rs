//! Changes of Portway's chains in the shared iptables tables by other processes are repaired and logged; changes of
//! other chains are ignored.

use crate::agent_lab::{AgentLab, wait_timeout};
use crate::tool::{FAMILIES, Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[
    ("edited_chains_are_repaired_nf_tables", |lab| edited(lab, Nft, CHAINS)),
    ("edited_chains_are_repaired_legacy", |lab| edited(lab, Legacy, CHAINS)),
    ("edited_shared_chains_are_repaired_nf_tables", |lab| edited(lab, Nft, SHARED)),
    ("edited_shared_chains_are_repaired_legacy", |lab| edited(lab, Legacy, SHARED)),
    ("lost_hooks_are_repaired_nf_tables", |lab| edited(lab, Nft, HOOKS)),
    ("lost_hooks_are_repaired_legacy", |lab| edited(lab, Legacy, HOOKS)),
    ("a_reloaded_firewall_is_repaired_nf_tables", |lab| reloaded(lab, Nft)),
    ("a_reloaded_firewall_is_repaired_legacy", |lab| reloaded(lab, Legacy)),
    ("a_replaced_rule_of_the_same_size_is_found_by_the_periodic_check", replaced),
    ("foreign_chains_may_jump_to_portways_chains_nf_tables", |lab| foreign_jumps(lab, Nft)),
    ("foreign_chains_may_jump_to_portways_chains_legacy", |lab| foreign_jumps(lab, Legacy)),
    ("a_table_the_tool_cannot_list_is_still_synced", unlistable_table),
    ("foreign_changes_cause_no_sync", foreign_changes),
    ("foreign_changes_are_not_reported_as_drift", foreign_changes_legacy),
];

/// Arguments of the tool that make a change, and the text in the log about its repair.
type Edits = &'static [(&'static str, &'static str)];

const CHAINS: Edits = &[
    (
        "-t nat -F KUBE-SVC-LOLE4ISW44XBNF3G",
        "chain KUBE-SVC-LOLE4ISW44XBNF3G of default/web was changed: without `-A KUBE-SVC-LOLE4ISW44XBNF3G",
    ),
    (
        "-t nat -D KUBE-SEP-BSJG54EXAHTH4INO 2",
        "without `-A KUBE-SEP-BSJG54EXAHTH4INO -p tcp -m comment --comment \"default/web\" -m tcp -j DNAT \
         --to-destination 10.244.1.10:8080`",
    ),
    (
        "-t nat -I KUBE-EXT-LOLE4ISW44XBNF3G -j RETURN",
        "chain KUBE-EXT-LOLE4ISW44XBNF3G of default/web was changed: with `-A KUBE-EXT-LOLE4ISW44XBNF3G -j RETURN`",
    ),
    (
        "-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
        "chain KUBE-SVC-AAAAAAAAAAAAAAAA in table nat belongs to no Service",
    ),
];

const SHARED: Edits = &[
    ("-t nat -D KUBE-SERVICES 1", "`-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp"),
    (
        "-t nat -D KUBE-SERVICES 2",
        "`-A KUBE-SERVICES ! -d 127.0.0.0/8 -m comment --comment \"kubernetes service nodeports;",
    ),
    ("-t filter -I KUBE-FORWARD -j DROP", "`-A KUBE-FORWARD -j DROP` does not belong there"),
    ("-t mangle -X KUBE-PROXY-CANARY", "chain KUBE-PROXY-CANARY in table mangle is missing"),
];

const HOOKS: Edits = &[
    (
        "-t nat -F PREROUTING",
        "`-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES` is missing",
    ),
    (
        "-t filter -F FORWARD",
        "`-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD` is missing",
    ),
    ("-t nat -F", "is missing"),
];

/// Starts the mode on a node whose kubelet uses a variant.
fn start(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()
}

/// Each change is logged, with the process where the kernel reports it, then repaired; afterwards the rules are as
/// before.
fn edited(lab: &mut AgentLab, variant: Variant, edits: Edits) -> Outcome {
    start(lab, variant)?;
    let before = rules(lab, variant)?;
    for (repairs, (arguments, text)) in (1..).zip(edits) {
        lab.iptables(variant, &arguments.split(' ').collect::<Vec<_>>())?;
        // The kernel does not announce changes of legacy tables, so the process that made them is unknown.
        if variant == Nft {
            lab.logged(&["WARN", "rules changed by another process", "process=\"iptables-nft (process "])?;
        }
        lab.logged(&["WARN", "repaired rules that another process had changed", "family=\"IPv4\"", text])
            .map_err(|e| with_arguments(arguments, &e))?;
        eventually(wait_timeout(), || has_rules(lab, variant, &before))
            .map_err(|e| format!("{arguments}: {e}"))?;
        lab.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == f64::from(repairs))?;
    }
    lab.web_works()
}

fn with_arguments(arguments: &str, e: &Failed) -> String {
    format!("{arguments}: {}", e.message().unwrap_or_default())
}

/// The lines of both families, sorted: the order of rules in the chains that all Services share may vary.
fn rules(lab: &AgentLab, variant: Variant) -> Result<Vec<String>, Failed> {
    let mut lines = Vec::new();
    for family in FAMILIES {
        lines.extend(lab.save(variant, family)?.lines().map(str::to_owned));
    }
    lines.sort_unstable();
    Ok(lines)
}

fn has_rules(lab: &AgentLab, variant: Variant, before: &[String]) -> Result<(), String> {
    let now = rules(lab, variant).map_err(|e| e.message().unwrap_or_default().to_owned())?;
    if now == before {
        return Ok(());
    }
    let lost: Vec<&String> = before.iter().filter(|l| !now.contains(l)).collect();
    let new: Vec<&String> = now.iter().filter(|l| !before.contains(l)).collect();
    Err(format!("missing {lost:#?}, new {new:#?}"))
}

/// Like `firewall-cmd --reload` and `iptables-restore` without `--noflush`: rules that are not in the file are removed,
/// those of the kubelet included.
fn reloaded(lab: &mut AgentLab, variant: Variant) -> Outcome {
    start(lab, variant)?;
    let is_own = |line: &&String| !line.contains("KUBE-FIREWALL");
    let before = lab.kube_lines(variant)?.iter().filter(is_own).count();
    for family in FAMILIES {
        let file = "*nat\n:MINE - [0:0]\n-A POSTROUTING -j MINE\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n";
        lab.tool(&format!("{}-restore", variant.of(family)), &["-w"], file)?;
    }
    for family in ["IPv4", "IPv6"] {
        lab.logged(&[
            "WARN",
            "repaired rules that another process had changed",
            &format!("family=\"{family}\""),
            "is missing",
        ])?;
    }
    lab.web_works()?;
    eventually(wait_timeout(), || {
        let lines = lab.kube_lines(variant).map_err(|e| e.message().unwrap_or_default().to_owned())?;
        if lines.iter().filter(is_own).count() >= before { Ok(()) } else { Err(lines.join("\n")) }
    })?;
    let rules = lab.save(variant, "iptables")?;
    ensure(rules.contains("-A POSTROUTING -j MINE\n"), || format!("the foreign rule was removed:\n{rules}"))
}

/// The cheap check of legacy tables compares sizes, and this change keeps the size.
fn replaced(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    lab.start(&["--proxy-mode=iptables", "--iptables-sync-period=1s"])?;
    lab.web_works()?;
    let before = rules(lab, Legacy)?;
    lab.load(
        Legacy,
        "iptables",
        "*nat\n-R KUBE-SEP-BSJG54EXAHTH4INO 2 -p tcp -m comment --comment \"default/web\" -m tcp -j DNAT \
         --to-destination 10.244.1.99:8080\nCOMMIT\n",
    )?;
    let words = [
        "WARN",
        "repaired rules that another process had changed",
        "family=\"IPv4\"",
        "KUBE-SEP-BSJG54EXAHTH4INO of default/web",
    ];
    // The pause between comparisons of all rules is a hundred times as long as one takes: minutes on a busy machine.
    let line = (0..4).find_map(|_| lab.logged(&words).ok());
    let line = line.map_or_else(|| lab.logged(&words), Ok)?;
    ensure(line.contains("10.244.1.10:8080"), || format!("the missing rule is not logged: {line}"))?;
    eventually(wait_timeout(), || has_rules(lab, Legacy, &before))?;
    lab.web_works()
}

/// The number of rules in PREROUTING that jump to KUBE-SERVICES; with nf_tables as `nft` lists them.
fn hooks(lab: &AgentLab, variant: Variant) -> Result<usize, Failed> {
    let text = match variant {
        Nft => lab.nft(&["list", "chain", "ip", "nat", "PREROUTING"])?,
        Legacy => lab.iptables(Legacy, &["-t", "nat", "-S", "PREROUTING"])?,
    };
    Ok(text.lines().filter(|l| l.ends_with("KUBE-SERVICES")).count())
}

fn foreign_jumps(lab: &mut AgentLab, variant: Variant) -> Outcome {
    start(lab, variant)?;
    let foreign = "-A MINE -s 203.0.113.7/32 -j KUBE-SERVICES\n-A MINE -j KUBE-SVC-LOLE4ISW44XBNF3G\n";
    lab.load(
        variant,
        "iptables",
        &format!("*nat\n:MINE - [0:0]\n-A PREROUTING -i nowhere -j MINE\n{foreign}COMMIT\n"),
    )?;
    for repairs in 1..=2 {
        lab.iptables(variant, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
        lab.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == f64::from(repairs))?;
        lab.web_works()?;
    }
    // The Service is deleted. Its chain stays, because a foreign rule jumps to it; other Services work.
    lab.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &lab.pod_ips("pod1b")[..1]));
    lab.delete("web.yaml");
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    lab.reaches_no_pod("10.96.0.1:80".parse()?)?;
    let hooks = hooks(lab, variant)?;
    ensure(hooks == 1, || format!("{hooks} rules jump to KUBE-SERVICES"))?;
    let rules = lab.save(variant, "iptables")?;
    ensure(rules.contains(foreign) && rules.contains("-A PREROUTING -i nowhere -j MINE\n"), || {
        format!("foreign rules were removed:\n{rules}")
    })?;
    // The chain is removed once no foreign rule jumps to it.
    lab.load(variant, "iptables", "*nat\n-F MINE\nCOMMIT\n")?;
    lab.iptables(variant, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
    eventually(wait_timeout(), || {
        let rules = lab.save(variant, "iptables").unwrap_or_default();
        if rules.contains("LOLE4ISW44XBNF3G") { Err(rules) } else { Ok(()) }
    })?;
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])
}

/// `iptables` does not list a table with a rule that it cannot express.
fn unlistable_table(lab: &mut AgentLab) -> Outcome {
    start(lab, Nft)?;
    let foreign = "numgen random mod 2 0 counter packets 0 bytes 0";
    lab.nft(&["add rule ip nat PREROUTING ip saddr 203.0.113.7 numgen random mod 2 0 counter"])?;
    let listed = lab.tool("iptables-nft-save", &[], "")?;
    ensure(listed.contains("Table `nat' is incompatible"), || format!("the table can be listed:\n{listed}"))?;
    let svc = "KUBE-SVC-LOLE4ISW44XBNF3G";
    for turn in 1..=3 {
        lab.nft(&[&format!("flush chain ip nat {svc}")])?;
        eventually(wait_timeout(), || {
            let rules = lab.nft(&["list", "chain", "ip", "nat", svc]).unwrap_or_default();
            if rules.contains("jump KUBE-SEP-") { Ok(()) } else { Err(format!("turn {turn}: {rules}")) }
        })?;
        lab.web_works()?;
        let hooks = hooks(lab, Nft)?;
        ensure(hooks == 1, || format!("{hooks} rules jump to KUBE-SERVICES"))?;
    }
    // Portway's jump is removed, the foreign rule is not.
    let rules = lab.nft(&["-a", "list", "chain", "ip", "nat", "PREROUTING"])?;
    let handle = rules.lines().find(|l| l.contains("jump KUBE-SERVICES")).and_then(|l| l.rsplit(' ').next());
    let handle = handle.ok_or_else(|| format!("no jump to KUBE-SERVICES:\n{rules}"))?;
    lab.nft(&[&format!("delete rule ip nat PREROUTING handle {handle}")])?;
    eventually(wait_timeout(), || match hooks(lab, Nft) {
        Ok(1) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    lab.apply("web-v4.yaml", &objects::slice("web", "web-v4", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let rules = lab.nft(&["list", "chain", "ip", "nat", "PREROUTING"])?;
    ensure(rules.contains(foreign), || format!("the foreign rule was removed:\n{rules}"))?;
    // A restarted agent adopts the existing rules.
    lab.stop()?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.logged(&["synced", "family=\"IPv4\""])?;
    let hooks = hooks(lab, Nft)?;
    ensure(hooks == 1, || format!("after a restart, {hooks} rules jump to KUBE-SERVICES"))?;
    lab.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    // Cleanup fails with an error as long as the table cannot be listed.
    lab.stop()?;
    let output = lab.portway(&["cleanup"])?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let explained = stderr.contains("cannot show its table nat") && stderr.contains("nft list table ip nat");
    ensure(output.status.code() == Some(1) && explained, || format!("{}: {stderr}", output.status))?;
    let rules = lab.nft(&["-a", "list", "chain", "ip", "nat", "PREROUTING"])?;
    let handle = rules.lines().find(|l| l.contains("numgen")).and_then(|l| l.rsplit(' ').next());
    let handle = handle.ok_or_else(|| format!("the foreign rule was removed:\n{rules}"))?;
    lab.nft(&[&format!("delete rule ip nat PREROUTING handle {handle}")])?;
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    let left = lab.kube_lines(Nft)?;
    ensure(left.is_empty(), || left.join("\n"))
}

fn foreign_changes(lab: &mut AgentLab) -> Outcome {
    start(lab, Nft)?;
    let series = |f| format!("kubeproxy_sync_full_proxy_rules_duration_seconds_count{{ip_family=\"{f}\"}}");
    let full = |lab: &AgentLab| -> Result<f64, Failed> {
        let metrics = lab.metrics()?;
        Ok(metrics.value(&series("IPv4")) + metrics.value(&series("IPv6")))
    };
    // Rules are in force a moment before their sync is counted.
    for family in ["IPv4", "IPv6"] {
        lab.metric(&series(family), |n| n >= 1.0)?;
    }
    let before = full(lab)?;
    // As Docker does when it starts containers; and a table that does not belong to iptables changes.
    lab.load(
        Nft,
        "iptables",
        "*nat\n:DOCKER - [0:0]\n-I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\nCOMMIT\n",
    )?;
    for port in 8001..8006 {
        let rule = format!(
            "-A DOCKER ! -i docker0 -p tcp -m tcp --dport {port} -j DNAT --to-destination 172.17.0.2:80"
        );
        lab.load(Nft, "iptables", &format!("*nat\n{rule}\nCOMMIT\n"))?;
    }
    lab.load(Nft, "iptables", "*filter\n-I INPUT -s 203.0.113.9/32 -j DROP\n-P FORWARD ACCEPT\nCOMMIT\n")?;
    lab.load(
        Nft,
        "iptables",
        "*nat\n-D PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n-F DOCKER\n-X DOCKER\nCOMMIT\n",
    )?;
    lab.nft(&["add table inet mine; add chain inet mine c; delete table inet mine"])?;
    // A Service is programmed meanwhile.
    lab.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    let after = full(lab)?;
    ensure(after == before, || format!("{} full syncs", after - before))?;
    // A change of a Portway chain is logged; the foreign changes before it were not.
    lab.iptables(Nft, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
    lab.logged(&["repaired rules that another process had changed", "family=\"IPv4\""])?;
    lab.web_works()?;
    let count = lab.agent()?.log().count("rules changed by another process");
    ensure(count == 1, || format!("{count} changes of Portway's chains were logged"))?;
    lab.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == 1.0).map(drop)
}

/// The kernel does not announce changes of legacy tables, so a foreign change causes a full sync, which finds no drift.
fn foreign_changes_legacy(lab: &mut AgentLab) -> Outcome {
    start(lab, Legacy)?;
    let full = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    lab.metric(full, |n| n >= 1.0)?;
    let before = lab.metrics()?.value(full);
    lab.load(Legacy, "iptables", "*nat\n:DOCKER - [0:0]\n-I PREROUTING -j DOCKER\nCOMMIT\n")?;
    lab.metric(full, |n| n > before)?;
    // A change of a Portway chain is logged; the foreign change before it was not.
    lab.iptables(Legacy, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
    let line = lab.logged(&["repaired rules that another process had changed", "family=\"IPv4\""])?;
    ensure(line.contains("`-A KUBE-SERVICES -d 10.96.0.1/32") && !line.contains("DOCKER"), || line.clone())?;
    lab.web_works()?;
    let log = lab.agent()?.log().clone();
    ensure(!log.contains("rules changed by another process"), || log.to_string())?;
    lab.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == 1.0)?;
    let rules = lab.save(Legacy, "iptables")?;
    ensure(rules.contains("-A PREROUTING -j DOCKER\n"), || format!("the foreign rule was removed:\n{rules}"))
}
