//! Changes by other processes to our tables are repaired; their own tables are not touched.

use crate::agent_lab::{AgentLab, patience};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("a_flushed_ruleset_is_repaired", |world| tampered(world, "flush ruleset", "missing", &["the table"])),
    ("a_deleted_table_is_repaired", |world| {
        tampered(world, "delete table ip portway", "missing", &["the table"])
    }),
    ("a_deleted_ipv6_table_is_repaired", |world| {
        tampered(world, "delete table ip6 portway", "missing", &["the table"])
    }),
    ("a_foreign_rule_in_our_table_is_removed", |world| {
        tampered(world, "insert rule ip portway filter-prerouting drop", "altered", &["filter-prerouting"])
    }),
    ("a_foreign_chain_in_our_table_is_removed", |world| {
        tampered(world, "add chain ip portway intruder", "foreign", &["intruder"])
    }),
    ("foreign_objects_of_unknown_kinds_are_removed", strange),
    ("foreign_tables_are_not_changed", foreign),
    ("changes_of_foreign_tables_cause_no_repair", elsewhere),
    ("cleanup_removes_our_tables_only", cleanup),
];

/// Another process runs `nft`; the log must name the process, how many objects were `how`, and the words in `what`.
fn tampered(world: &mut AgentLab, doing: &str, how: &str, what: &[&str]) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let family = if doing.contains("ip6") { "IPv6" } else { "IPv4" };
    let before = world.nft(&["list", "ruleset"])?;
    let repairs = format!("portway_drift_repairs_total{{ip_family=\"{family}\"}}");
    let objects = format!("portway_drift_objects_total{{ip_family=\"{family}\",change=\"{how}\"}}");
    ensure(world.metrics()?.value(&repairs) == 0.0, || "repairs before there was any damage".to_owned())?;
    world.nft(&doing.split(' ').collect::<Vec<_>>())?;
    world.logged(&["WARN", "rules changed by another process", "process=\"nft (process "])?;
    let line = world.logged(&[
        "WARN",
        "repaired rules that another process had changed",
        &format!("family={family}"),
    ])?;
    let count = |word: &&str| {
        line.split(&format!(" {word}")).next().and_then(|l| l.rsplit(' ').next()).map(str::to_owned)
    };
    ensure(count(&how).is_some_and(|n| n != "0"), || format!("nothing {how}: {line}"))?;
    ensure(what.iter().all(|word| line.contains(word)), || format!("not {what:?}: {line}"))?;
    world.web_works()?;
    world.metric(&repairs, |n| n == 1.0)?;
    world.metric(&objects, |n| n >= 1.0)?;
    // As it was: rules, elements, and nothing more.
    let after = world.nft(&["list", "ruleset"])?;
    ensure(same_rules(&before, &after), || format!("it was\n{before}\nand is\n{after}"))
}

/// Others speak more of nftables' language than we do.
const STRANGE: &[&str] = &[
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

fn strange(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    let before = world.nft(&["list", "table", "ip", "portway"])?;
    let as_before = |patience| {
        eventually(patience, || {
            let after = world.nft(&["list", "table", "ip", "portway"]).unwrap_or_default();
            if same_rules(&before, &after) { Ok(()) } else { Err(after) }
        })
    };
    let mut wrong = Vec::new();
    for doing in STRANGE {
        world.nft(&[doing])?;
        if let Err(e) = as_before(Duration::from_secs(2)) {
            wrong.push(format!("not undone: {doing}: {e}"));
            // For the next one to have its chance.
            world.nft(&["delete table ip portway"])?;
            as_before(patience())?;
        }
    }
    ensure(wrong.is_empty(), || wrong.join("\n"))?;
    world.web_works()
}

/// Whether two listings say the same. Tables are listed in the order they were made, elements in that of a hash
/// with a random seed.
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

/// Foreign tables, some with names similar to ours.
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
const NAMES: [[&str; 2]; 4] =
    [["inet", "portway"], ["ip", "portway-other"], ["ip6", "kube-proxies"], ["ip", "nat"]];

/// Makes the foreign tables.
fn make_foreign(world: &AgentLab) -> Outcome {
    let file = world.path("foreign.nft");
    std::fs::write(&file, FOREIGN)?;
    world.nft(&["-f", &file.display().to_string()]).map(drop)
}

fn list_foreign(world: &AgentLab) -> Result<Vec<String>, Failed> {
    NAMES.iter().map(|[family, name]| world.nft(&["-a", "list", "table", family, name])).collect()
}

/// With handles: a table that was removed and made again would have others.
fn unchanged(world: &AgentLab, before: &[String], after_what: &str) -> Outcome {
    let now = list_foreign(world)?;
    ensure(now == before, || format!("{after_what} changed\n{}\nto\n{}", before.concat(), now.concat()))
}

fn foreign(world: &mut AgentLab) -> Outcome {
    make_foreign(world)?;
    let before = list_foreign(world)?;
    world.start(&[])?;
    world.web_works()?;
    unchanged(world, &before, "the start")?;
    world.delete("web-v6.yaml");
    world.reaches_nobody("[fd96::1]:80".parse()?)?;
    unchanged(world, &before, "a sync")?;
    world.nft(&["delete", "table", "ip", "portway"])?;
    world.logged(&["repaired rules that another process had changed", "IPv4"])?;
    world.reaches("10.96.0.1:80".parse()?, &["pod1a", "pod1b"])?;
    unchanged(world, &before, "a repair")?;
    world.stop()?;
    unchanged(world, &before, "the end")?;
    let output = world.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    unchanged(world, &before, "cleanup")
}

fn elsewhere(world: &mut AgentLab) -> Outcome {
    world.start(&[])?;
    world.web_works()?;
    make_foreign(world)?;
    world.nft(&["flush", "table", "inet", "portway"])?;
    world.nft(&["delete", "table", "ip", "portway-other"])?;
    // This repair is the first: the foreign changes before it caused none.
    world.nft(&["delete", "table", "ip", "portway"])?;
    world.logged(&["repaired rules that another process had changed", "IPv4"])?;
    world.web_works()?;
    let count = world.agent()?.log().count("rules changed by another process");
    ensure(count == 1, || format!("{count} changes were taken for changes of ours"))
}

fn cleanup(world: &mut AgentLab) -> Outcome {
    make_foreign(world)?;
    let before = list_foreign(world)?;
    let tables = world.nft(&["list", "tables"])?;
    for (arguments, twice) in
        [(&["proxy", "--cleanup"][..], false), (&["cleanup"], false), (&["cleanup"], true)]
    {
        if !twice {
            world.start(&[])?;
            world.web_works()?;
            world.kill()?;
            let now = world.nft(&["list", "tables"])?;
            ensure(now.contains("table ip portway\n") && now.contains("table ip6 portway\n"), || {
                now.clone()
            })?;
        }
        let output = world.portway(arguments)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.code() == Some(0), || format!("{arguments:?}: {}: {said}", output.status))?;
        let now = world.nft(&["list", "tables"])?;
        ensure(now == tables, || format!("{arguments:?} left\n{now}\nof\n{tables}"))?;
        unchanged(world, &before, "cleanup")?;
    }
    world.reaches_nobody("10.96.0.1:80".parse()?)
}
