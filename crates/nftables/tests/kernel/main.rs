//! The mode against a real kernel, in a network namespace of its own.

mod world;

use libtest_mimic::{Arguments, Failed, Trial};
use portway_dataplane::{Dataplane, LocalTraffic, NodePortAddresses, Settings};
use portway_lab::Namespace;
use portway_model::Family;
use portway_nftables::Nftables;
use serde_json::json;
use std::process::{Command, ExitCode};
use world::zoo;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(e) = portway_lab::enter()
    {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    type Test = fn(Family);
    let table: [(&str, Test); 5] = [
        ("lists_back_what_was_wanted", lists_back_what_was_wanted),
        ("incremental_equals_from_scratch", incremental_equals_from_scratch),
        ("nft_prints_it_and_loads_it_again", nft_prints_it_and_loads_it_again),
        ("damage_is_found_and_repaired", damage_is_found_and_repaired),
        ("cleanup_leaves_others_alone", cleanup_leaves_others_alone),
    ];
    let trials = table.into_iter().flat_map(|(name, test)| {
        Family::ALL.map(|family| {
            Trial::test(format!("{family}::{name}"), move || {
                let namespace = Namespace::new(&format!("{name}-{family}")).map_err(Failed::from)?;
                namespace.run(|| test(family));
                Ok(())
            })
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
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

fn open(family: Family) -> Nftables {
    Nftables::open(family).expect("a kernel with nf_tables")
}

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().expect("nft is installed");
    assert!(output.status.success(), "nft {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn word(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}

fn lists_back_what_was_wanted(family: Family) {
    let mut mode = open(family);
    let report = mode.sync(&settings(), zoo().changes(family)).unwrap();
    assert!(report.full && report.added > 50, "{report:?}");
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
    // A second agent that starts on top of it finds nothing to do.
    let mut next = open(family);
    let report = next.sync(&settings(), zoo().changes(family)).unwrap();
    assert_eq!((report.added, report.removed), (0, 0), "{report:?}");
}

fn incremental_equals_from_scratch(family: Family) {
    let http = json!({"name": "http", "port": 8080});
    let mut world = zoo();
    let mut mode = open(family);
    mode.sync(&settings(), world.changes(family)).unwrap();
    type Step = Box<dyn Fn(&mut world::World)>;
    let step = |f: fn(&mut world::World, serde_json::Value)| -> Step {
        let http = http.clone();
        Box::new(move |w| f(w, http.clone()))
    };
    let steps: Vec<Step> = vec![
        step(|w, http| {
            w.endpoints("plain", http, &[(10, "node1")]);
        }),
        step(|w, http| {
            w.endpoints("empty", http, &[(10, "node1"), (77, "node1")]);
        }),
        step(|w, http| {
            w.endpoints("sticky", http, &[(22, "node2")]);
        }),
        step(|w, http| {
            w.endpoints("elsewhere", http, &[(41, "node2"), (40, "node1")]);
        }),
        step(|w, http| {
            w.endpoints("balanced", http, &[]);
        }),
        step(|w, _| {
            w.delete("sticky").delete("plain");
        }),
        step(|w, http| {
            w.service("plain", 1, json!({"sessionAffinity": "ClientIP"}), json!({}));
            w.endpoints("plain", http, &[(12, "node2"), (13, "node2")]);
        }),
        step(|w, _| {
            w.delete("empty").delete("balanced").delete("elsewhere").delete("udp").delete("plain");
        }),
    ];
    for (i, step) in steps.iter().enumerate() {
        step(&mut world);
        let report = mode.sync(&settings(), world.changes(family)).unwrap();
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

fn nft_prints_it_and_loads_it_again(family: Family) {
    let mut mode = open(family);
    mode.sync(&settings(), zoo().changes(family)).unwrap();
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

fn damage_is_found_and_repaired(family: Family) {
    let table = word(family);
    let theirs = "{ type ipv6_addr . ipv6_addr . ipv6_addr; elements = { ::1 . ::1 . ::1 }; }";
    let damage: [&[&str]; 11] = [
        &["flush", "ruleset"],
        &["flush", "chain", table, "portway", "services"],
        &["flush", "map", table, "portway", "endpoints"],
        &["add", "rule", table, "portway", "refuse", "accept"],
        &["add", "chain", table, "portway", "intruder"],
        &["flush", "table", table, "portway"],
        // What we never write must not keep us from reading the rest: other verdicts, longer keys, anonymous sets.
        &["add", "rule", table, "portway", "refuse", "continue"],
        &["add", "element", table, "portway", "sticky-nodeports", "{ tcp . 1 : continue }"],
        &["add", "set", table, "portway", "theirs", theirs],
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
    mode.sync(&settings(), zoo().changes(family)).unwrap();
    for arguments in damage {
        nft(arguments);
        assert!(!mode.verify().unwrap().is_empty(), "{arguments:?} was not noticed");
        mode.distrust();
        let report = mode.sync(&settings(), Vec::new()).unwrap();
        assert!(!report.drift.is_empty(), "{arguments:?} was not reported");
        let drift = mode.verify().unwrap();
        assert!(drift.is_empty(), "after {arguments:?}: {drift}");
    }
}

fn cleanup_leaves_others_alone(family: Family) {
    nft(&["add", "table", word(family), "theirs"]);
    let mut mode = open(family);
    mode.sync(&settings(), zoo().changes(family)).unwrap();
    mode.cleanup().unwrap();
    assert_eq!(nft(&["list", "tables"]).trim(), format!("table {} theirs", word(family)));
    mode.cleanup().unwrap();
}
