//! Portway replaces kube-proxy in any of its modes, under load; and `cleanup` removes leftovers of both.

use crate::agent_lab::{AgentLab, wait_timeout};
use crate::foreign_rules::Foreign;
use crate::mode_change::only_mode_in_force;
use crate::tool::{Legacy, Nft, VARIANTS, Variant};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[
    ("from_iptables_nf_tables_to_iptables", |lab| from_iptables(lab, Nft, "iptables")),
    ("from_iptables_legacy_to_iptables", |lab| from_iptables(lab, Legacy, "iptables")),
    ("from_iptables_nf_tables_to_nftables", |lab| from_iptables(lab, Nft, "nftables")),
    ("from_iptables_legacy_to_nftables", |lab| from_iptables(lab, Legacy, "nftables")),
    ("from_nftables_to_iptables_nf_tables", |lab| from_nftables(lab, Nft, "iptables")),
    ("from_nftables_to_iptables_legacy", |lab| from_nftables(lab, Legacy, "iptables")),
    ("from_nftables_to_nftables", |lab| from_nftables(lab, Nft, "nftables")),
    ("from_ipvs_to_iptables_nf_tables", |lab| from_ipvs(lab, Nft, "iptables")),
    ("from_ipvs_to_iptables_legacy", |lab| from_ipvs(lab, Legacy, "iptables")),
    ("from_ipvs_to_nftables", |lab| from_ipvs(lab, Legacy, "nftables")),
    ("cleanup_removes_the_objects_it_lists_with_nf_tables", |lab| cleanup(lab, Nft)),
    ("cleanup_removes_the_objects_it_lists_with_legacy", |lab| cleanup(lab, Legacy)),
    ("cleanup_without_a_kubelet_leaves_no_chain", without_kubelet),
    ("a_chain_with_foreign_references_is_flushed_and_kept", referenced_chain),
];

fn from_iptables(lab: &mut AgentLab, variant: Variant, mode: &str) -> Outcome {
    lab.kubelet(variant)?;
    let foreign = Foreign::create(lab, variant)?;
    lab.kube_proxy_iptables(variant)?;
    take_over(lab, variant, mode, &foreign)
}

fn from_nftables(lab: &mut AgentLab, variant: Variant, mode: &str) -> Outcome {
    lab.kubelet(variant)?;
    let foreign = Foreign::create(lab, variant)?;
    lab.kube_proxy_nftables()?;
    take_over(lab, variant, mode, &foreign)
}

/// Starts the agent on a node with the rules of kube-proxy, under load.
fn take_over(lab: &mut AgentLab, variant: Variant, mode: &str, foreign: &Foreign) -> Outcome {
    let mut traffic = Traffic::begin(lab)?;
    lab.start(&[&format!("--proxy-mode={mode}")])?;
    check_takeover(lab, variant, mode, foreign)?;
    traffic.is_alive("taken over")?;
    traffic.end()
}

/// Only those objects of kube-proxy are left that Portway uses itself, and foreign rules are unchanged.
fn check_takeover(lab: &AgentLab, variant: Variant, mode: &str, foreign: &Foreign) -> Outcome {
    no_kube_proxy_leftovers(lab, variant, mode)?;
    match mode {
        "iptables" => foreign.is_unchanged(lab, "after the start"),
        _ => foreign.is_the_only_content(lab, "after the start"),
    }
}

fn no_kube_proxy_leftovers(lab: &AgentLab, variant: Variant, mode: &str) -> Outcome {
    let attempt = || {
        let message = |e: Failed| e.message().unwrap_or_default().to_owned();
        let tables = lab.nft(&["list", "tables"]).map_err(message)?;
        let lines = lab.kube_lines(variant).map_err(message)?;
        let is_leftover = |l: &&String| KUBE_PROXY_ONLY.iter().any(|word| l.contains(word));
        let mut left: Vec<String> = lines.iter().filter(is_leftover).cloned().collect();
        left.extend(tables.lines().filter(|l| l.ends_with(" kube-proxy")).map(str::to_owned));
        left.extend(lab.ipvs_leftovers().map_err(message)?);
        if left.is_empty() { Ok(()) } else { Err(format!("leftovers of kube-proxy:\n{}", left.join("\n"))) }
    };
    eventually(wait_timeout(), attempt)?;
    if mode == "nftables" { Ok(()) } else { one_canary_per_family(lab, variant) }
}

/// Texts that occur only in kube-proxy's rules: comments, addresses of deleted Services, chains of other modes.
const KUBE_PROXY_ONLY: [&str; 6] =
    ["web -> ", "10.97.0.1", "KUBE-IPVS", "KUBE-NODE-PORT ", "KUBE-SOURCE-RANGES", "--match-set KUBE-C"];

/// Only the canary chains of Portway are left. kube-proxy has canaries in more tables.
fn one_canary_per_family(lab: &AgentLab, variant: Variant) -> Outcome {
    let lines = lab.kube_lines(variant)?;
    let canaries = lines.iter().filter(|l| l.contains("KUBE-PROXY-CANARY")).count();
    ensure(canaries == 2, || {
        format!("{canaries} canary chains; Portway creates one in the table mangle of each family")
    })
}

fn from_ipvs(lab: &mut AgentLab, variant: Variant, mode: &str) -> Outcome {
    lab.kubelet(variant)?;
    let foreign = Foreign::create(lab, variant)?;
    lab.kube_proxy_ipvs(variant)?;
    lab.start(&[&format!("--proxy-mode={mode}")])?;
    check_takeover(lab, variant, mode, &foreign)?;
    lab.web_works()?;
    let left = lab.ipvs_leftovers()?;
    ensure(left.is_empty(), || left.join("\n"))?;
    lab.logged(&[
        "removed leftovers of a previous proxy mode",
        "location=\"ipvs",
        "kube-ipvs0 with 3 addresses",
    ])?;
    lab.stop()?;
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    foreign.is_the_only_content(lab, "after cleanup")
}

/// Runs `portway`, and returns the lines of its output; it must succeed.
fn stdout_lines(lab: &AgentLab, arguments: &[&str]) -> Result<Vec<String>, Failed> {
    let output = lab.portway(arguments)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.success(), || format!("{arguments:?}: {}: {stderr}", output.status))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The node has leftovers of all modes of kube-proxy, and of the nftables mode of Portway.
fn cleanup(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    let foreign = Foreign::create(lab, variant)?;
    lab.start(&["--proxy-mode=nftables"])?;
    lab.web_works()?;
    lab.kill()?;
    lab.kube_proxy_nftables()?;
    lab.kube_proxy_iptables(variant.other())?;
    lab.kube_proxy_ipvs(variant)?;
    let before = lab.everything()?;
    let listed = stdout_lines(lab, &["cleanup", "--dry-run"])?;
    let after = lab.everything()?;
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
    let removed = stdout_lines(lab, &["cleanup"])?;
    let would: Vec<String> = listed.iter().map(|l| l.replacen("would remove", "removed", 1)).collect();
    ensure(would == removed, || format!("it listed\n{listed:#?}\nand removed\n{removed:#?}"))?;
    foreign.is_the_only_content(lab, "after cleanup")?;
    for v in VARIANTS {
        let left =
            lab.kube_lines(v)?.into_iter().filter(|l| v != variant || !is_foreign(l)).collect::<Vec<_>>();
        ensure(left.is_empty(), || left.join("\n"))?;
    }
    let left = lab.ipvs_leftovers()?;
    ensure(left.is_empty(), || left.join("\n"))?;
    let tables = lab.nft(&["list", "tables"])?;
    let left = tables.lines().any(|t| t.ends_with(" portway") || t.ends_with(" kube-proxy"));
    ensure(!left, || tables.clone())?;
    for (arguments, text) in [
        (&["cleanup"][..], "there was nothing to remove"),
        (&["cleanup", "--dry-run"], "there is nothing to remove"),
    ] {
        let lines = stdout_lines(lab, arguments)?;
        ensure(lines == [text], || format!("{arguments:?}: {lines:?}"))?;
    }
    lab.reaches_no_pod("10.96.0.1:80".parse()?)
}

/// Whether a line belongs to the network policy agent.
fn is_foreign(line: &str) -> bool {
    ["KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-MINE"].iter().any(|word| line.contains(word))
}

/// Without a kubelet, only rules of Portway use `KUBE-FIREWALL`.
fn without_kubelet(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=iptables"])?;
    only_mode_in_force(lab, "iptables", Nft)?;
    lab.web_works()?;
    lab.stop()?;
    stdout_lines(lab, &["cleanup"])?;
    let left = lab.kube_lines(Nft)?;
    ensure(left.is_empty(), || left.join("\n"))
}

fn referenced_chain(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    lab.start(&["--proxy-mode=iptables"])?;
    lab.web_works()?;
    let rules = "*nat\n:MINE - [0:0]\n-A MINE -s 203.0.113.7/32 -j KUBE-SERVICES\nCOMMIT\n";
    lab.load(Legacy, "iptables", rules)?;
    lab.stop()?;
    let printed = stdout_lines(lab, &["cleanup"])?;
    let reported = printed
        .iter()
        .any(|l| l.contains("KUBE-SERVICES") && l.contains("not removed") && l.contains("-A MINE"));
    ensure(reported, || format!("{printed:#?}"))?;
    let left = lab.kube_lines(Legacy)?;
    let stays = ["iptables: :KUBE-SERVICES -", "iptables: -A MINE -s 203.0.113.7/32 -j KUBE-SERVICES"];
    ensure(left == stays, || left.join("\n"))
}
