//! What others do to our chains in the tables that all share is repaired, and said; what they do to theirs is none
//! of our business.

use crate::agent_lab::{AgentLab, patience};
use crate::tool::{FAMILIES, Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[
    ("edited_chains_are_repaired_nf_tables", |world| edited(world, Nft, CHAINS)),
    ("edited_chains_are_repaired_legacy", |world| edited(world, Legacy, CHAINS)),
    ("edited_shared_chains_are_repaired_nf_tables", |world| edited(world, Nft, SHARED)),
    ("edited_shared_chains_are_repaired_legacy", |world| edited(world, Legacy, SHARED)),
    ("lost_hooks_are_repaired_nf_tables", |world| edited(world, Nft, HOOKS)),
    ("lost_hooks_are_repaired_legacy", |world| edited(world, Legacy, HOOKS)),
    ("a_reloaded_firewall_is_repaired_nf_tables", |world| reloaded(world, Nft)),
    ("a_reloaded_firewall_is_repaired_legacy", |world| reloaded(world, Legacy)),
    ("a_replaced_rule_of_the_same_size_is_found_by_the_periodic_check", replaced),
    ("foreign_chains_may_jump_to_ours_nf_tables", |world| led_to(world, Nft)),
    ("foreign_chains_may_jump_to_ours_legacy", |world| led_to(world, Legacy)),
    ("a_table_the_tool_cannot_list_is_still_synced", incompatible),
    ("foreign_changes_cause_no_sync", elsewhere),
    ("foreign_changes_are_not_reported_as_drift", elsewhere_legacy),
];

/// A change with the tool, and the text of the log about it.
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
    ("-t nat -D KUBE-SERVICES 2", "`-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports;"),
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

/// Starts it on a host whose kubelet uses a variant.
fn start(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()
}

/// Somebody changes our rules: that is said, with who it was where that is known, and what was wrong; and all is as
/// it was before.
fn edited(world: &mut AgentLab, variant: Variant, edits: Edits) -> Outcome {
    start(world, variant)?;
    let before = rules(world, variant)?;
    for (turn, (doing, words)) in (1..).zip(edits) {
        world.iptables(variant, &doing.split(' ').collect::<Vec<_>>())?;
        // The old tables' changes are not announced: only that something is different can be seen.
        if variant == Nft {
            world.logged(&[
                "WARN",
                "rules changed by another process",
                "process=\"iptables-nft (process ",
            ])?;
        }
        world
            .logged(&["WARN", "repaired rules that another process had changed", "family=IPv4", words])
            .map_err(|e| about(doing, &e))?;
        eventually(patience(), || is(world, variant, &before)).map_err(|e| format!("{doing}: {e}"))?;
        world.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == f64::from(turn))?;
    }
    world.web_works()
}

fn about(doing: &str, e: &Failed) -> String {
    format!("{doing}: {}", e.message().unwrap_or_default())
}

/// The lines of both families, in order. In chains that all Services share, their rules may be in any order.
fn rules(world: &AgentLab, variant: Variant) -> Result<Vec<String>, Failed> {
    let mut lines = Vec::new();
    for family in FAMILIES {
        lines.extend(world.save(variant, family)?.lines().map(str::to_owned));
    }
    lines.sort_unstable();
    Ok(lines)
}

fn is(world: &AgentLab, variant: Variant, before: &[String]) -> Result<(), String> {
    let now = rules(world, variant).map_err(|e| e.message().unwrap_or_default().to_owned())?;
    if now == before {
        return Ok(());
    }
    let lost: Vec<&String> = before.iter().filter(|l| !now.contains(l)).collect();
    let new: Vec<&String> = now.iter().filter(|l| !before.contains(l)).collect();
    Err(format!("lost {lost:#?}, new {new:#?}"))
}

/// As `firewall-cmd --reload` and an `iptables-restore` at the wrong time do: what is not in the file is gone, also
/// what the kubelet made.
fn reloaded(world: &mut AgentLab, variant: Variant) -> Outcome {
    start(world, variant)?;
    let before = world.kube_lines(variant)?.len();
    for family in FAMILIES {
        let file = "*nat\n:MINE - [0:0]\n-A POSTROUTING -j MINE\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n";
        world.tool(&format!("{}-restore", variant.of(family)), &["-w"], file)?;
    }
    for family in ["IPv4", "IPv6"] {
        world.logged(&[
            "WARN",
            "repaired rules that another process had changed",
            &format!("family={family}"),
            "is missing",
        ])?;
    }
    world.web_works()?;
    let after = eventually(patience(), || {
        let lines = world.kube_lines(variant).map_err(|e| e.message().unwrap_or_default().to_owned())?;
        if lines.len() >= before { Ok(lines) } else { Err(lines.join("\n")) }
    })?;
    ensure(after.iter().any(|l| l.contains("-A KUBE-FIREWALL ! -s 127.0.0.0/8")), || after.join("\n"))?;
    let rules = world.save(variant, "iptables")?;
    ensure(rules.contains("-A POSTROUTING -j MINE\n"), || format!("theirs is gone:\n{rules}"))
}

/// The old variant's tables have sizes, and this leaves them as they are.
fn replaced(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    world.start(&["--proxy-mode=iptables", "--iptables-sync-period=1s"])?;
    world.web_works()?;
    let before = rules(world, Legacy)?;
    world.load(
        Legacy,
        "iptables",
        "*nat\n-R KUBE-SEP-BSJG54EXAHTH4INO 2 -p tcp -m comment --comment \"default/web\" -m tcp -j DNAT \
         --to-destination 10.244.1.99:8080\nCOMMIT\n",
    )?;
    let line = world.logged(&[
        "WARN",
        "repaired rules that another process had changed",
        "family=IPv4",
        "KUBE-SEP-BSJG54EXAHTH4INO of default/web",
    ])?;
    ensure(line.contains("10.244.1.10:8080"), || format!("it is not said what was missing: {line}"))?;
    eventually(patience(), || is(world, Legacy, &before))?;
    world.web_works()
}

/// How often a rule jumps from a shared chain to one of ours, as the layer below the tool lists it.
fn hooks(world: &AgentLab, variant: Variant) -> Result<usize, Failed> {
    let text = match variant {
        Nft => world.nft(&["list", "chain", "ip", "nat", "PREROUTING"])?,
        Legacy => world.iptables(Legacy, &["-t", "nat", "-S", "PREROUTING"])?,
    };
    Ok(text.lines().filter(|l| l.ends_with("KUBE-SERVICES")).count())
}

fn led_to(world: &mut AgentLab, variant: Variant) -> Outcome {
    start(world, variant)?;
    let mine = "-A MINE -s 203.0.113.7/32 -j KUBE-SERVICES\n-A MINE -j KUBE-SVC-LOLE4ISW44XBNF3G\n";
    world.load(
        variant,
        "iptables",
        &format!("*nat\n:MINE - [0:0]\n-A PREROUTING -i nowhere -j MINE\n{mine}COMMIT\n"),
    )?;
    for turn in 1..=2 {
        world.iptables(variant, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
        world.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == f64::from(turn))?;
        world.web_works()?;
    }
    // The Service is deleted; its chain, which a foreign rule jumps to, stays; everything else works.
    world.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    world.apply("late-slice.yaml", &objects::slice("late", "late", &world.pod_ips("pod1b")[..1]));
    world.delete("web.yaml");
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    world.reaches_nobody("10.96.0.1:80".parse()?)?;
    let hooks = hooks(world, variant)?;
    ensure(hooks == 1, || format!("{hooks} rules lead to KUBE-SERVICES"))?;
    let rules = world.save(variant, "iptables")?;
    ensure(rules.contains(mine) && rules.contains("-A PREROUTING -i nowhere -j MINE\n"), || {
        format!("lost:\n{rules}")
    })?;
    // And once it can, it goes.
    world.load(variant, "iptables", "*nat\n-F MINE\nCOMMIT\n")?;
    world.iptables(variant, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
    eventually(patience(), || {
        let rules = world.save(variant, "iptables").unwrap_or_default();
        if rules.contains("LOLE4ISW44XBNF3G") { Err(rules) } else { Ok(()) }
    })?;
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])
}

/// A rule that `iptables` has no words for makes it say nothing about the whole table.
fn incompatible(world: &mut AgentLab) -> Outcome {
    start(world, Nft)?;
    let theirs = "numgen random mod 2 0 counter packets 0 bytes 0";
    world.nft(&["add rule ip nat PREROUTING ip saddr 203.0.113.7 numgen random mod 2 0 counter"])?;
    let shown = world.tool("iptables-nft-save", &[], "")?;
    ensure(shown.contains("Table `nat' is incompatible"), || format!("it can be shown:\n{shown}"))?;
    let svc = "KUBE-SVC-LOLE4ISW44XBNF3G";
    for turn in 1..=3 {
        world.nft(&[&format!("flush chain ip nat {svc}")])?;
        eventually(patience(), || {
            let rules = world.nft(&["list", "chain", "ip", "nat", svc]).unwrap_or_default();
            if rules.contains("jump KUBE-SEP-") { Ok(()) } else { Err(format!("turn {turn}: {rules}")) }
        })?;
        world.web_works()?;
        let hooks = hooks(world, Nft)?;
        ensure(hooks == 1, || format!("{hooks} rules lead to KUBE-SERVICES"))?;
    }
    // Our hook is lost, the foreign one is not.
    let ours = world.nft(&["-a", "list", "chain", "ip", "nat", "PREROUTING"])?;
    let handle = ours.lines().find(|l| l.contains("jump KUBE-SERVICES")).and_then(|l| l.rsplit(' ').next());
    let handle = handle.ok_or_else(|| format!("no rule of ours:\n{ours}"))?;
    world.nft(&[&format!("delete rule ip nat PREROUTING handle {handle}")])?;
    eventually(patience(), || match hooks(world, Nft) {
        Ok(1) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    let rules = world.nft(&["list", "chain", "ip", "nat", "PREROUTING"])?;
    ensure(rules.contains(theirs), || format!("theirs is gone:\n{rules}"))?;
    // After a restart it adopts the existing rules.
    world.stop()?;
    world.start(&["--proxy-mode=iptables"])?;
    world.logged(&["synced", "family=IPv4"])?;
    let hooks = hooks(world, Nft)?;
    ensure(hooks == 1, || format!("after a restart, {hooks} rules lead to KUBE-SERVICES"))?;
    world.reaches("10.96.0.1:80".parse()?, &["pod1b"])?;
    // What cannot be shown cannot be cleaned up; that is said, and once it can be, it is.
    world.stop()?;
    let output = world.portway(&["cleanup"])?;
    let said = String::from_utf8_lossy(&output.stderr);
    let told = said.contains("cannot show its table nat") && said.contains("nft list table ip nat");
    ensure(output.status.code() == Some(1) && told, || format!("{}: {said}", output.status))?;
    let rules = world.nft(&["-a", "list", "chain", "ip", "nat", "PREROUTING"])?;
    let handle = rules.lines().find(|l| l.contains("numgen")).and_then(|l| l.rsplit(' ').next());
    let handle = handle.ok_or_else(|| format!("theirs is gone:\n{rules}"))?;
    world.nft(&[&format!("delete rule ip nat PREROUTING handle {handle}")])?;
    let output = world.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    let left = world.kube_lines(Nft)?;
    ensure(left.is_empty(), || left.join("\n"))
}

fn elsewhere(world: &mut AgentLab) -> Outcome {
    start(world, Nft)?;
    let full = |world: &AgentLab| -> Result<f64, Failed> {
        let metrics = world.metrics()?;
        let count = |f| {
            metrics.value(&format!(
                "kubeproxy_sync_full_proxy_rules_duration_seconds_count{{ip_family=\"{f}\"}}"
            ))
        };
        Ok(count("IPv4") + count("IPv6"))
    };
    let before = full(world)?;
    // Docker starts a container or two, and a table that is not of iptables changes.
    world.load(
        Nft,
        "iptables",
        "*nat\n:DOCKER - [0:0]\n-I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\nCOMMIT\n",
    )?;
    for port in 8001..8006 {
        let rule = format!(
            "-A DOCKER ! -i docker0 -p tcp -m tcp --dport {port} -j DNAT --to-destination 172.17.0.2:80"
        );
        world.load(Nft, "iptables", &format!("*nat\n{rule}\nCOMMIT\n"))?;
    }
    world.load(
        Nft,
        "iptables",
        "*filter\n-I INPUT -s 203.0.113.9/32 -j DROP\n-P FORWARD ACCEPT\nCOMMIT\n",
    )?;
    world.load(
        Nft,
        "iptables",
        "*nat\n-D PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n-F DOCKER\n-X DOCKER\nCOMMIT\n",
    )?;
    world.nft(&["add table inet mine; add chain inet mine c; delete table inet mine"])?;
    // Our own work goes on in between.
    world.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    world.apply("late-slice.yaml", &objects::slice("late", "late", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    let after = full(world)?;
    ensure(after == before, || format!("{} full syncs", after - before))?;
    // Ours comes after; had one of the others been taken for it, that would have been said before.
    world.iptables(Nft, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
    world.logged(&["repaired rules that another process had changed", "family=IPv4"])?;
    world.web_works()?;
    let count = world.agent()?.log().count("rules changed by another process");
    ensure(count == 1, || format!("{count} changes were taken for changes of ours"))?;
    world.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == 1.0).map(drop)
}

/// Where the kernel announces no changes, a foreign change costs one listing.
fn elsewhere_legacy(world: &mut AgentLab) -> Outcome {
    start(world, Legacy)?;
    let full = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    let before = world.metrics()?.value(full);
    world.load(Legacy, "iptables", "*nat\n:DOCKER - [0:0]\n-I PREROUTING -j DOCKER\nCOMMIT\n")?;
    world.metric(full, |n| n > before)?;
    // Ours comes after; had the other been taken for it, that would have been said before.
    world.iptables(Legacy, &["-t", "nat", "-F", "KUBE-SERVICES"])?;
    let line = world.logged(&["repaired rules that another process had changed", "family=IPv4"])?;
    ensure(line.contains("`-A KUBE-SERVICES -d 10.96.0.1/32") && !line.contains("DOCKER"), || line.clone())?;
    world.web_works()?;
    let log = world.agent()?.log().clone();
    ensure(!log.contains("rules changed by another process"), || log.to_string())?;
    world.metric("portway_drift_repairs_total{ip_family=\"IPv4\"}", |n| n == 1.0)?;
    let rules = world.save(Legacy, "iptables")?;
    ensure(rules.contains("-A PREROUTING -j DOCKER\n"), || format!("theirs is gone:\n{rules}"))
}
