//! Changes of Portway's nftables tables by other processes are repaired; tables of other programs are not changed.

use crate::agent_lab::{AgentLab, wait_timeout};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("a_flushed_ruleset_is_repaired", |lab| tampered(lab, "flush ruleset", "missing", &["the table"])),
    ("a_deleted_table_is_repaired", |lab| {
        tampered(lab, "delete table ip portway", "missing", &["the table"])
    }),
    ("a_deleted_ipv6_table_is_repaired", |lab| {
        tampered(lab, "delete table ip6 portway", "missing", &["the table"])
    }),
    ("a_foreign_rule_in_portways_table_is_removed", |lab| {
        tampered(lab, "insert rule ip portway filter-prerouting drop", "altered", &["filter-prerouting"])
    }),
    ("a_foreign_chain_in_portways_table_is_removed", |lab| {
        tampered(lab, "add chain ip portway intruder", "foreign", &["intruder"])
    }),
    ("foreign_objects_of_unknown_kinds_are_removed", unknown_kinds),
    ("foreign_tables_are_not_changed", foreign_tables),
    ("changes_of_foreign_tables_cause_no_repair", foreign_changes),
    ("cleanup_removes_portways_tables_only", cleanup),
];

/// Another process runs `nft`. The log must have the process, the number of objects in the state `change`, and all of
/// `names`.
fn tampered(lab: &mut AgentLab, nft: &str, change: &str, names: &[&str]) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let family = if nft.contains("ip6") { "IPv6" } else { "IPv4" };
    let before = lab.nft(&["list", "ruleset"])?;
    let repairs = format!("portway_drift_repairs_total{{ip_family=\"{family}\"}}");
    let objects = format!("portway_drift_objects_total{{ip_family=\"{family}\",change=\"{change}\"}}");
    ensure(lab.metrics()?.value(&repairs) == 0.0, || "repairs were counted before a change".to_owned())?;
    lab.nft(&nft.split(' ').collect::<Vec<_>>())?;
    lab.logged(&["WARN", "rules changed by another process", "process=\"nft (process "])?;
    let line = lab.logged(&[
        "WARN",
        "repaired rules that another process had changed",
        &format!("family=\"{family}\""),
    ])?;
    let count = line.split_whitespace().find_map(|word| word.strip_prefix(change)?.strip_prefix('='));
    ensure(count.is_some_and(|n| n != "0"), || format!("no object is {change}: {line}"))?;
    ensure(names.iter().all(|name| line.contains(name)), || format!("{names:?} are not logged: {line}"))?;
    lab.web_works()?;
    lab.metric(&repairs, |n| n == 1.0)?;
    lab.metric(&objects, |n| n >= 1.0)?;
    // The same rules and elements as before, and no others.
    let after = lab.nft(&["list", "ruleset"])?;
    ensure(same_rules(&before, &after), || format!("it was\n{before}\nand is\n{after}"))
}

/// Changes with objects, flags and expressions of nftables that Portway does not use itself.
const UNKNOWN_KINDS: &[&str] = &[
    "insert rule ip portway filter-prerouting limit rate 1/second log prefix \"x\" drop",
    "insert rule ip portway filter-prerouting ip saddr { 192.168.50.201, 10.0.0.0/8 } counter drop",
    "add chain ip portway hooked { type filter hook prerouting priority -500; policy drop; }",
    "add set ip portway odd { type ether_addr . mark; flags dynamic,timeout; timeout 1h; size 5; }",
    "add map ip portway picks { type inet_service : verdict; elements = { 80 : drop } }; \
     add chain ip portway sub { tcp dport vmap @picks; }; insert rule ip portway filter-prerouting jump sub",
    "add chain ip portway counting { meta mark set 5 counter ct mark set mark; fib saddr . iif oif missing drop; }",
    "add counter ip portway hits; add chain ip portway counting { counter name hits; }",
    "add quota ip portway much { over 1 mbytes }; add limit ip portway some { rate 5/second; }",
    "add table ip portway { flags dormant; }",
];

fn unknown_kinds(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    let before = lab.nft(&["list", "table", "ip", "portway"])?;
    let repaired = |timeout| {
        eventually(timeout, || {
            let after = lab.nft(&["list", "table", "ip", "portway"]).unwrap_or_default();
            if same_rules(&before, &after) { Ok(()) } else { Err(after) }
        })
    };
    let mut failures = Vec::new();
    for change in UNKNOWN_KINDS {
        lab.nft(&[change])?;
        if let Err(e) = repaired(Duration::from_secs(2)) {
            failures.push(format!("not repaired: {change}: {e}"));
            // So that the next change starts from a correct table.
            lab.nft(&["delete table ip portway"])?;
            repaired(wait_timeout())?;
        }
    }
    ensure(failures.is_empty(), || failures.join("\n"))?;
    lab.web_works()
}

/// Whether two listings have the same content. Tables are listed in the order of their creation, elements in the order
/// of a hash with a random seed.
fn same_rules(a: &str, b: &str) -> bool {
    let lines = |text: &str| {
        let words = text.replace(['{', '}', ','], "\n");
        let mut lines: Vec<String> =
            words.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect();
        lines.sort_unstable();
        lines
    };
    lines(a) == lines(b)
}

/// Foreign tables, some with names similar to those of Portway's tables.
const FOREIGN: &str = "
table inet portway {
    set ports { type inet_service; elements = { 1, 2, 3 }; }
    chain input { type filter hook input priority 10; policy accept; tcp dport @ports counter drop; }
}
table ip portway-other {
    chain services { tcp dport 80 accept; }
    chain prerouting { type nat hook prerouting priority -90; policy accept; ip daddr 203.0.113.7 jump services; }
}
table ip6 kube-proxies {
    map m { type ipv6_addr : verdict; elements = { fd00::1 : drop }; }
    chain forward { type filter hook forward priority 5; policy accept; ip6 daddr vmap @m; }
}
table ip nat {
    chain KUBE-ROUTER { ip daddr 10.96.0.99 counter masquerade; }
    chain POSTROUTING { type nat hook postrouting priority 100; policy accept; jump KUBE-ROUTER; }
}";
const FOREIGN_NAMES: [[&str; 2]; 4] =
    [["inet", "portway"], ["ip", "portway-other"], ["ip6", "kube-proxies"], ["ip", "nat"]];

/// Creates the foreign tables.
fn create_foreign(lab: &AgentLab) -> Outcome {
    let file = lab.path("foreign.nft");
    std::fs::write(&file, FOREIGN)?;
    lab.nft(&["-f", &file.display().to_string()]).map(drop)
}

fn list_foreign(lab: &AgentLab) -> Result<Vec<String>, Failed> {
    FOREIGN_NAMES.iter().map(|[family, name]| lab.nft(&["-a", "list", "table", family, name])).collect()
}

/// Compares with handles: a table that was removed and created again would have other handles.
fn unchanged(lab: &AgentLab, before: &[String], action: &str) -> Outcome {
    let now = list_foreign(lab)?;
    ensure(now == before, || format!("{action} changed\n{}\nto\n{}", before.concat(), now.concat()))
}

fn foreign_tables(lab: &mut AgentLab) -> Outcome {
    create_foreign(lab)?;
    let before = list_foreign(lab)?;
    lab.start(&[])?;
    lab.web_works()?;
    unchanged(lab, &before, "the start")?;
    lab.delete("web-v6.yaml");
    lab.reaches_no_pod("[fd96::1]:80".parse()?)?;
    unchanged(lab, &before, "a sync")?;
    lab.nft(&["delete", "table", "ip", "portway"])?;
    lab.logged(&["repaired rules that another process had changed", "IPv4"])?;
    lab.reaches("10.96.0.1:80".parse()?, &["pod1a", "pod1b"])?;
    unchanged(lab, &before, "a repair")?;
    lab.stop()?;
    unchanged(lab, &before, "the stop")?;
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    unchanged(lab, &before, "cleanup")
}

fn foreign_changes(lab: &mut AgentLab) -> Outcome {
    lab.start(&[])?;
    lab.web_works()?;
    create_foreign(lab)?;
    lab.nft(&["flush", "table", "inet", "portway"])?;
    lab.nft(&["delete", "table", "ip", "portway-other"])?;
    // The first repair: the foreign changes before it caused none.
    lab.nft(&["delete", "table", "ip", "portway"])?;
    lab.logged(&["repaired rules that another process had changed", "IPv4"])?;
    lab.web_works()?;
    let count = lab.agent()?.log().count("rules changed by another process");
    ensure(count == 1, || format!("{count} changes of Portway's tables were logged"))
}

fn cleanup(lab: &mut AgentLab) -> Outcome {
    create_foreign(lab)?;
    let before = list_foreign(lab)?;
    let tables = lab.nft(&["list", "tables"])?;
    for (arguments, twice) in
        [(&["proxy", "--cleanup"][..], false), (&["cleanup"], false), (&["cleanup"], true)]
    {
        if !twice {
            lab.start(&[])?;
            lab.web_works()?;
            lab.kill()?;
            let now = lab.nft(&["list", "tables"])?;
            ensure(now.contains("table ip portway\n") && now.contains("table ip6 portway\n"), || {
                now.clone()
            })?;
        }
        let output = lab.portway(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.code() == Some(0), || format!("{arguments:?}: {}: {stderr}", output.status))?;
        let now = lab.nft(&["list", "tables"])?;
        ensure(now == tables, || format!("{arguments:?} left\n{now}\ninstead of\n{tables}"))?;
        unchanged(lab, &before, "cleanup")?;
    }
    lab.reaches_no_pod("10.96.0.1:80".parse()?)
}
