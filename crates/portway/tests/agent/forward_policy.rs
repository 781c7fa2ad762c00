//! Hosts whose policy of chain FORWARD is DROP, as with Docker (docs/nftables.md).

use crate::agent_lab::{AgentLab, NODE_PORT, wait_timeout};
use crate::tool::{FAMILIES, Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure};
use portway_lab::{Probe, eventually};
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] = &[
    ("forwarded_traffic_is_accepted_under_a_drop_policy_nf_tables", |lab| accepted(lab, Nft)),
    ("forwarded_traffic_is_accepted_under_a_drop_policy_legacy", |lab| accepted(lab, Legacy)),
    ("forwarded_traffic_is_accepted_under_a_later_drop_policy", later),
    ("no_iptables_rule_is_added_without_a_drop_policy", not_needed),
];

/// Sets the policy of chain FORWARD in both families.
pub(crate) fn set_policy(lab: &AgentLab, variant: Variant, policy: &str) -> Outcome {
    for family in FAMILIES {
        lab.tool(&variant.of(family), &["-w", "-P", "FORWARD", policy], "")?;
    }
    Ok(())
}

/// Connections of a client outside of the node to its node port reach both pods, in both families.
fn forwarded(lab: &AgentLab) -> Outcome {
    for ip in lab.node_ips() {
        lab.reaches(SocketAddr::new(ip, NODE_PORT), &["pod1a", "pod1b"])?;
    }
    Ok(())
}

fn accepted(lab: &mut AgentLab, variant: Variant) -> Outcome {
    set_policy(lab, variant, "DROP")?;
    lab.start(&[])?;
    lab.logged(&["the policy of chain FORWARD is DROP; adding rules that accept Service traffic"])?;
    forwarded(lab)?;
    // The rules are repaired, and a restart adopts them.
    for family in FAMILIES {
        lab.tool(&variant.of(family), &["-w", "-F", "FORWARD"], "")?;
    }
    lab.logged(&["repaired rules that another process had changed", "FORWARD"])?;
    forwarded(lab)?;
    lab.stop()?;
    forwarded(lab)?;
    let before = lab.save(variant, "iptables")?;
    lab.start(&[])?;
    lab.logged(&["synced", "family=\"IPv6\""])?;
    forwarded(lab)?;
    let after = lab.save(variant, "iptables")?;
    ensure(before == after, || format!("a restart changed\n{before}\nto\n{after}"))?;
    lab.stop()?;
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    let rules = lab.save(variant, "iptables")?;
    ensure(!rules.contains("KUBE-"), || format!("cleanup left\n{rules}"))
}

fn later(lab: &mut AgentLab) -> Outcome {
    lab.start(&["--proxy-mode=nftables", "--nftables-sync-period=1s"])?;
    forwarded(lab)?;
    set_policy(lab, Nft, "DROP")?;
    let at = SocketAddr::new(lab.node_ips()[0], NODE_PORT);
    eventually(wait_timeout(), || {
        let outcome = Probe::tcp(lab.client(), at).count(4).run();
        if outcome.all_answered() { Ok(()) } else { Err(outcome.to_string()) }
    })?;
    lab.logged(&["the policy of chain FORWARD is DROP; adding rules that accept Service traffic"])?;
    // In the iptables mode the same chain belongs to that mode.
    lab.stop()?;
    lab.start(&["--proxy-mode=iptables"])?;
    forwarded(lab)
}

fn not_needed(lab: &mut AgentLab) -> Outcome {
    lab.tool("iptables-nft", &["-w", "-A", "FORWARD", "-s", "192.0.2.1", "-j", "DROP"], "")?;
    lab.start(&["--proxy-mode=nftables"])?;
    forwarded(lab)?;
    let rules = lab.save(Nft, "iptables")?;
    ensure(!rules.contains("KUBE-"), || format!("rules were added without need:\n{rules}"))
}
