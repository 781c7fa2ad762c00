//! Tests of the mode with a real kernel, each in a network namespace of its own.

mod services;

use portway_dataplane::Clear;
use portway_dataplane::Driver;
use portway_dataplane::{LocalTraffic, NodePortAddresses, Settings};
use portway_lab::Namespace;
use portway_model::Family;
use portway_nftables::Nftables;
use portway_nftables::{TABLE, leftovers};
use portway_testkit::cluster::{TestCluster, service};
use portway_testkit::harness::{self, Test};
use services::every_kind_of_service;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    type Run = fn(Family);
    let table: [(&str, Run); 5] = [
        ("kernel_lists_the_wanted_rules", kernel_lists_the_wanted_rules),
        ("incremental_changes_equal_a_fresh_start", incremental_changes_equal_a_fresh_start),
        ("nft_prints_the_ruleset_and_loads_it_again", nft_prints_the_ruleset_and_loads_it_again),
        ("changes_by_nft_are_reported_and_repaired", changes_by_nft_are_reported_and_repaired),
        ("cleanup_leaves_foreign_tables_alone", cleanup_leaves_foreign_tables_alone),
    ];
    let tests = table.into_iter().flat_map(|(name, test)| {
        Family::ALL.map(|family| {
            Test::new(format!("{family}::{name}"), move || {
                let namespace = Namespace::new(&format!("{name}-{family}"))?;
                namespace.run(|| test(family));
                Ok(())
            })
        })
    });
    harness::run_in(portway_lab::enter, tests.collect())
}

fn settings() -> Settings {
    Settings {
        local: LocalTraffic::Cidrs(vec!["10.244.0.0/16".parse().unwrap(), "fd10:244::/32".parse().unwrap()]),
        node_ports: NodePortAddresses::Within(vec![
            "192.168.0.0/16".parse().unwrap(),
            "128.0.0.0/1".parse().unwrap(),
            "fd50::/16".parse().unwrap(),
        ]),
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap(), "fd96::/112".parse().unwrap()],
        ..Settings::default()
    }
}

fn open(family: Family) -> Driver<Nftables> {
    Driver::new(Nftables::open(family).expect("a kernel with nf_tables"))
}

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().expect("nft is installed");
    assert!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn family_name(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}

fn kernel_lists_the_wanted_rules(family: Family) {
    let mut mode = open(family);
    let report = mode.sync(&settings(), every_kind_of_service().changes(family)).unwrap();
    assert!(report.full && report.added > 50, "{report:?}");
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
    // A second agent that starts with these rules in the kernel changes nothing.
    let mut next = open(family);
    let report = next.sync(&settings(), every_kind_of_service().changes(family)).unwrap();
    assert_eq!((report.added, report.removed), (0, 0), "{report:?}");
}

fn incremental_changes_equal_a_fresh_start(family: Family) {
    let mut cluster = every_kind_of_service();
    let mut mode = open(family);
    mode.sync(&settings(), cluster.changes(family)).unwrap();
    let delete =
        |cluster: &mut TestCluster, names: &[&str]| names.iter().for_each(|name| cluster.delete(name));
    let steps: [&dyn Fn(&mut TestCluster); 8] = [
        &|cluster| cluster.apply_hosts("plain", &["a"]),
        &|cluster| cluster.apply_hosts("empty", &["a", "b"]),
        &|cluster| cluster.apply_hosts("sticky", &["d"]),
        &|cluster| cluster.apply_hosts("elsewhere", &["d", "a"]),
        &|cluster| cluster.apply_hosts("balanced", &[]),
        &|cluster| delete(cluster, &["sticky", "plain"]),
        &|cluster| {
            cluster.apply(service("plain", 1).affinity(10_800));
            cluster.apply_hosts("plain", &["c", "d"]);
        },
        &|cluster| delete(cluster, &["empty", "balanced", "elsewhere", "udp", "plain"]),
    ];
    for (i, step) in steps.iter().enumerate() {
        step(&mut cluster);
        let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
        assert!(!report.full, "step {i} listed the kernel");
        let drift = mode.verify().unwrap();
        assert!(drift.is_empty(), "step {i}: {drift}");
    }
    let other = Settings {
        masquerade_all: true,
        node_ports: NodePortAddresses::All,
        local: LocalTraffic::InterfacePrefix("veth".into()),
        service_cidrs: vec!["10.128.0.0/9".parse().unwrap()],
        ..settings()
    };
    mode.sync(&other, Vec::new()).unwrap();
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "settings: {drift}");
}

fn nft_prints_the_ruleset_and_loads_it_again(family: Family) {
    let mut mode = open(family);
    mode.sync(&settings(), every_kind_of_service().changes(family)).unwrap();
    let printed = nft(&["list", "ruleset"]);
    let vip = if family == Family::V4 { "10.96.0.1" } else { "fd96::1" };
    let wanted = format!("{vip} . tcp . 80 comment \"default/plain:http\"");
    assert!(printed.contains(&wanted), "{wanted} is not in\n{printed}");
    let path = std::env::temp_dir().join(format!("portway-{}-{family}.nft", std::process::id()));
    std::fs::write(&path, &printed).unwrap();
    nft(&["flush", "ruleset"]);
    nft(&["-f", path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(nft(&["list", "ruleset"]), printed);
}

fn changes_by_nft_are_reported_and_repaired(family: Family) {
    let table = family_name(family);
    let long_key = "{ type ipv6_addr . ipv6_addr . ipv6_addr; elements = { ::1 . ::1 . ::1 }; }";
    let changes: [&[&str]; 11] = [
        &["flush", "ruleset"],
        &["flush", "chain", table, "portway", "services"],
        &["flush", "map", table, "portway", "endpoints"],
        &["add", "rule", table, "portway", "refuse", "accept"],
        &["add", "chain", table, "portway", "intruder"],
        &["flush", "table", table, "portway"],
        // Objects that the mode never creates must not prevent the listing: other verdicts, longer keys, anonymous
        // sets.
        &["add", "rule", table, "portway", "refuse", "continue"],
        &["add", "element", table, "portway", "sticky-nodeports", "{ tcp . 1 : continue }"],
        &["add", "set", table, "portway", "foreign", long_key],
        &["add", "rule", table, "portway", "refuse", "tcp", "dport", "{ 80, 81 }", "drop"],
        &[
            "add",
            "rule",
            table,
            "portway",
            "refuse",
            "tcp",
            "dport",
            "vmap",
            "{ 80 : drop, 81 : goto send-reject }",
        ],
    ];
    let mut mode = open(family);
    mode.sync(&settings(), every_kind_of_service().changes(family)).unwrap();
    for arguments in changes {
        nft(arguments);
        assert!(!mode.verify().unwrap().is_empty(), "{arguments:?} was not detected");
        mode.mark_stale();
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(!report.drift.is_empty(), "{arguments:?} was not reported");
        let drift = mode.verify().unwrap();
        assert!(drift.is_empty(), "after {arguments:?}: {drift}");
    }
}

fn cleanup_leaves_foreign_tables_alone(family: Family) {
    nft(&["add", "table", family_name(family), "foreign"]);
    let mut mode = open(family);
    mode.sync(&settings(), every_kind_of_service().changes(family)).unwrap();
    let removed = leftovers::clear(family, TABLE, Clear::Now).unwrap();
    assert_eq!(removed.len(), 1, "{removed:?}");
    assert_eq!(nft(&["list", "tables"]).trim(), format!("table {} foreign", family_name(family)));
    assert!(leftovers::clear(family, TABLE, Clear::Now).unwrap().is_empty());
}
