//! Taking over from kube-proxy, in any of its modes, under load; and cleaning up after it.

use crate::agent_lab::{AgentLab, patience};
use crate::foreign_rules::Foreign;
use crate::mode_change::only;
use crate::tool::{Legacy, Nft, VARIANTS, Variant};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[
    ("from_iptables_nf_tables_to_iptables", |world| from_iptables(world, Nft, "iptables")),
    ("from_iptables_legacy_to_iptables", |world| from_iptables(world, Legacy, "iptables")),
    ("from_iptables_nf_tables_to_nftables", |world| from_iptables(world, Nft, "nftables")),
    ("from_iptables_legacy_to_nftables", |world| from_iptables(world, Legacy, "nftables")),
    ("from_nftables_to_iptables_nf_tables", |world| from_nftables(world, Nft, "iptables")),
    ("from_nftables_to_iptables_legacy", |world| from_nftables(world, Legacy, "iptables")),
    ("from_nftables_to_nftables", |world| from_nftables(world, Nft, "nftables")),
    ("from_ipvs_to_iptables_nf_tables", |world| from_ipvs(world, Nft, "iptables")),
    ("from_ipvs_to_iptables_legacy", |world| from_ipvs(world, Legacy, "iptables")),
    ("from_ipvs_to_nftables", |world| from_ipvs(world, Legacy, "nftables")),
    ("cleanup_removes_the_objects_it_lists_with_nf_tables", |world| cleanup(world, Nft)),
    ("cleanup_removes_the_objects_it_lists_with_legacy", |world| cleanup(world, Legacy)),
    ("cleanup_without_a_kubelet_leaves_no_chain", no_kubelet),
    ("a_chain_with_foreign_references_is_flushed_and_kept", held),
];

fn from_iptables(world: &mut AgentLab, variant: Variant, mode: &str) -> Outcome {
    world.kubelet(variant)?;
    let foreign = Foreign::make(world, variant)?;
    world.kube_proxy_iptables(variant)?;
    take_over(world, variant, mode, &foreign)
}

fn from_nftables(world: &mut AgentLab, variant: Variant, mode: &str) -> Outcome {
    world.kubelet(variant)?;
    let foreign = Foreign::make(world, variant)?;
    world.kube_proxy_nftables()?;
    take_over(world, variant, mode, &foreign)
}

/// Begins where kube-proxy ended, and has all to itself in the end.
fn take_over(world: &mut AgentLab, variant: Variant, mode: &str, foreign: &Foreign) -> Outcome {
    let mut traffic = Traffic::begin(world)?;
    world.start(&[&format!("--proxy-mode={mode}")])?;
    taken(world, variant, mode, foreign)?;
    traffic.is_alive("taken over")?;
    traffic.end()
}

/// No object of kube-proxy is left except those that are ours now, and all foreign rules are.
fn taken(world: &AgentLab, variant: Variant, mode: &str, foreign: &Foreign) -> Outcome {
    only_ours(world, variant, mode)?;
    match mode {
        "iptables" => foreign.is_there(world, "after the start"),
        _ => foreign.is_alone(world, "after the start"),
    }
}

fn only_ours(world: &AgentLab, variant: Variant, mode: &str) -> Outcome {
    let attempt = || {
        let words = |e: Failed| e.message().unwrap_or_default().to_owned();
        let tables = world.nft(&["list", "tables"]).map_err(words)?;
        let lines = world.kube_lines(variant).map_err(words)?;
        let left = |l: &&String| LEFT.iter().any(|word| l.contains(word));
        let mut left: Vec<String> = lines.iter().filter(left).cloned().collect();
        left.extend(tables.lines().filter(|l| l.ends_with(" kube-proxy")).map(str::to_owned));
        left.extend(world.ipvs_left().map_err(words)?);
        if left.is_empty() { Ok(()) } else { Err(format!("left of kube-proxy:\n{}", left.join("\n"))) }
    };
    eventually(patience(), attempt)?;
    if mode == "nftables" { Ok(()) } else { only_right(world, variant) }
}

/// Text that only kube-proxy's rules have: comments, addresses of deleted Services, chains of other modes.
const LEFT: [&str; 6] =
    ["web -> ", "10.97.0.1", "KUBE-IPVS", "KUBE-NODE-PORT ", "KUBE-SOURCE-RANGES", "--match-set KUBE-C"];

/// What a look from scratch would change: nothing.
fn only_right(world: &AgentLab, variant: Variant) -> Outcome {
    let ours = world.kube_lines(variant)?;
    let canaries = ours.iter().filter(|l| l.contains("KUBE-PROXY-CANARY")).count();
    ensure(canaries == 2, || format!("{canaries} canaries: one in mangle in each family is ours"))
}

fn from_ipvs(world: &mut AgentLab, variant: Variant, mode: &str) -> Outcome {
    world.kubelet(variant)?;
    let foreign = Foreign::make(world, variant)?;
    world.kube_proxy_ipvs(variant)?;
    world.start(&[&format!("--proxy-mode={mode}")])?;
    taken(world, variant, mode, &foreign)?;
    world.web_works()?;
    let left = world.ipvs_left()?;
    ensure(left.is_empty(), || left.join("\n"))?;
    world.logged(&[
        "removed leftovers of a previous proxy mode",
        "location=ipvs",
        "kube-ipvs0 with 3 addresses",
    ])?;
    world.stop()?;
    let output = world.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    foreign.is_alone(world, "after cleanup")
}

/// Runs it, and returns what it says; it must end well.
fn say(world: &AgentLab, arguments: &[&str]) -> Result<Vec<String>, Failed> {
    let output = world.portway(arguments)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.success(), || format!("{arguments:?}: {}: {complaint}", output.status))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The node has leftovers of all modes of kube-proxy and of ours.
fn cleanup(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    let foreign = Foreign::make(world, variant)?;
    world.start(&["--proxy-mode=nftables"])?;
    world.web_works()?;
    world.kill()?;
    world.kube_proxy_nftables()?;
    world.kube_proxy_iptables(variant.other())?;
    world.kube_proxy_ipvs(variant)?;
    let before = world.everything()?;
    let listed = say(world, &["cleanup", "--dry-run"])?;
    let after = world.everything()?;
    ensure(before == after, || format!("a dry run changed\n{before}\nto\n{after}"))?;
    let names = [
        "table ip portway",
        "table ip6 kube-proxy",
        "KUBE-SERVICES",
        "KUBE-IPVS-FILTER",
        "kube-ipvs0",
        "KUBE-CLUSTER-IP",
    ];
    for name in names {
        ensure(listed.iter().any(|l| l.contains(name)), || format!("{name} is not listed: {listed:#?}"))?;
    }
    ensure(!listed.iter().any(|l| l.contains("KUBE-MINE")), || {
        format!("a foreign set is listed: {listed:#?}")
    })?;
    let removed = say(world, &["cleanup"])?;
    let would: Vec<String> = listed.iter().map(|l| l.replacen("would remove", "removed", 1)).collect();
    ensure(would == removed, || format!("it listed\n{listed:#?}\nand did\n{removed:#?}"))?;
    foreign.is_alone(world, "after cleanup")?;
    for v in VARIANTS {
        let left =
            world.kube_lines(v)?.into_iter().filter(|l| v != variant || !is_foreign(l)).collect::<Vec<_>>();
        ensure(left.is_empty(), || left.join("\n"))?;
    }
    let left = world.ipvs_left()?;
    ensure(left.is_empty(), || left.join("\n"))?;
    let tables = world.nft(&["list", "tables"])?;
    let ours = tables.lines().any(|t| t.ends_with(" portway") || t.ends_with(" kube-proxy"));
    ensure(!ours, || tables.clone())?;
    for (arguments, words) in [
        (&["cleanup"][..], "there was nothing to remove"),
        (&["cleanup", "--dry-run"], "there is nothing to remove"),
    ] {
        let said = say(world, arguments)?;
        ensure(said == [words], || format!("{arguments:?}: {said:?}"))?;
    }
    world.reaches_nobody("10.96.0.1:80".parse()?)
}

/// Chains of a network policy agent.
fn is_foreign(line: &str) -> bool {
    ["KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-MINE"].iter().any(|word| line.contains(word))
}

/// Without a kubelet, only our rules use `KUBE-FIREWALL`.
fn no_kubelet(world: &mut AgentLab) -> Outcome {
    world.start(&["--proxy-mode=iptables"])?;
    only(world, "iptables", Nft)?;
    world.web_works()?;
    world.stop()?;
    say(world, &["cleanup"])?;
    let left = world.kube_lines(Nft)?;
    ensure(left.is_empty(), || left.join("\n"))
}

fn held(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    world.start(&["--proxy-mode=iptables"])?;
    world.web_works()?;
    let rules = "*nat\n:MINE - [0:0]\n-A MINE -s 203.0.113.7/32 -j KUBE-SERVICES\nCOMMIT\n";
    world.load(Legacy, "iptables", rules)?;
    world.stop()?;
    let said = say(world, &["cleanup"])?;
    let told =
        said.iter().any(|l| l.contains("KUBE-SERVICES") && l.contains("stays") && l.contains("-A MINE"));
    ensure(told, || format!("{said:#?}"))?;
    let left = world.kube_lines(Legacy)?;
    let stays = ["iptables: :KUBE-SERVICES -", "iptables: -A MINE -s 203.0.113.7/32 -j KUBE-SERVICES"];
    ensure(left == stays, || left.join("\n"))
}
