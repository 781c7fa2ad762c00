//! The size of a script depends on the change, not on the number of Services.

use portway_model::{Family, Target};
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::objects::Endpoint;
use portway_xtables::Variant;
use portway_xtables::fake::Fake;

/// The scripts of a sequence of changes, in a cluster with `others` more Services.
fn scripts(others: u8, family: Family, variant: Variant) -> Vec<String> {
    let web = || service("web", 1).node_port(30001);
    let mut cluster = TestCluster::new().service(web()).slice("web", &Endpoint::all(&["a", "c"]));
    for n in 2..2 + others {
        let name = format!("other{n}");
        cluster.apply(service(&name, n));
        // Some have no endpoints.
        cluster.apply_hosts(&name, if n % 5 == 0 { &[] } else { &["b", "d"] });
    }
    let mut mode = portway_iptables::mode::with_kernel(Fake::new(family, variant), family);
    mode.sync(&settings(), cluster.all(family)).unwrap();
    let mut script = |cluster: &mut TestCluster| {
        let report = mode.sync(&settings(), cluster.changes(family)).unwrap();
        assert!(!report.full);
        mode.program().kernel().last().to_owned()
    };
    let mut scripts = Vec::new();
    for hosts in [&["a", "c", "d"][..], &["a", "d"], &["b", "d"], &[], &["a"]] {
        cluster.apply_hosts("web", hosts);
        scripts.push(script(&mut cluster));
    }
    cluster.delete("web");
    scripts.push(script(&mut cluster));
    cluster.apply(web());
    scripts.push(script(&mut cluster));
    scripts
}

#[test]
fn scripts_do_not_depend_on_other_services() {
    for family in Family::ALL {
        for variant in Variant::ALL {
            let alone = scripts(0, family, variant);
            let longest = alone.iter().map(|script| script.lines().count()).max();
            assert!(longest < Some(24), "{alone:#?}");
            assert_eq!(alone, scripts(200, family, variant));
        }
    }
}

#[test]
fn an_endpoint_change_writes_its_chain_and_the_chain_that_selects_it() {
    let scripts = scripts(0, Family::V4, Variant::Legacy);
    insta::assert_snapshot!(scripts[0], @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-NIMRB72CNAYKLM25 - [0:0]
    -A KUBE-SEP-NIMRB72CNAYKLM25 -s 10.244.2.21/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-NIMRB72CNAYKLM25 -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.2.21:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-GWQABTP5GBYXHJY5
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-JSM7SY6H3R2Z3REK
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-NIMRB72CNAYKLM25
    COMMIT
    "#);
    insta::assert_snapshot!(scripts[2], @r#"
    *nat
    :KUBE-SVC-CDGGSHYLG3RE2FKL - [0:0]
    :KUBE-SEP-ELX6N4Z5RGB67TLC - [0:0]
    -A KUBE-SEP-ELX6N4Z5RGB67TLC -s 10.244.1.11/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
    -A KUBE-SEP-ELX6N4Z5RGB67TLC -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.1.11:8080
    -A KUBE-SVC-CDGGSHYLG3RE2FKL ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ELX6N4Z5RGB67TLC
    -A KUBE-SVC-CDGGSHYLG3RE2FKL -m comment --comment "default/web:http" -j KUBE-SEP-NIMRB72CNAYKLM25
    -F KUBE-SEP-GWQABTP5GBYXHJY5
    -X KUBE-SEP-GWQABTP5GBYXHJY5
    COMMIT
    "#);
    insta::assert_snapshot!(scripts[3], @r#"
    *filter
    -I KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "default/web:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
    -I KUBE-EXTERNAL-SERVICES -d 192.168.50.0/24 -p tcp -m comment --comment "default/web:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30001 -j REJECT --reject-with icmp-port-unreachable
    COMMIT
    *nat
    -D KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-CDGGSHYLG3RE2FKL
    -D KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30001 -j KUBE-EXT-CDGGSHYLG3RE2FKL
    -F KUBE-SVC-CDGGSHYLG3RE2FKL
    -F KUBE-EXT-CDGGSHYLG3RE2FKL
    -F KUBE-SEP-ELX6N4Z5RGB67TLC
    -F KUBE-SEP-NIMRB72CNAYKLM25
    -X KUBE-SVC-CDGGSHYLG3RE2FKL
    -X KUBE-EXT-CDGGSHYLG3RE2FKL
    -X KUBE-SEP-ELX6N4Z5RGB67TLC
    -X KUBE-SEP-NIMRB72CNAYKLM25
    COMMIT
    "#);
}

/// Whether the rules of an endpoint, and those that lead to the Service, have comments when it has `count` endpoints.
fn comments(mode: &mut portway_iptables::Iptables<Fake>, count: u32) -> (bool, bool) {
    let mut cluster = TestCluster::new().service(service("web", 1)).slice("web", &Endpoint::all(&["a"]));
    let mut plans = cluster.all(Family::V4);
    for plan in plans.iter_mut().filter_map(|(_, plan)| plan.as_mut()) {
        let target = |n| Target { ip: std::net::Ipv4Addr::from(0x0af4_0000 + n).into(), port: 8080 };
        plan.ports[0].cluster = (0..count).map(target).collect();
    }
    mode.sync(&settings(), plans).unwrap();
    let rules = mode.program().wanted();
    let mut listed = String::new();
    let add = &mut |line: &str| listed.push_str(&format!("{line}\n"));
    portway_xtables::commit::Kernel::save(mode.program().kernel(), add).unwrap();
    let commented = |text: &str, chain: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with(&format!("-A {chain}"))).peekable();
        assert!(lines.peek().is_some(), "{chain}");
        let (with, without): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.contains("--comment"));
        assert!(with.is_empty() || without.is_empty(), "{chain}: all or none: {with:?} {without:?}");
        without.is_empty()
    };
    for chain in ["KUBE-SEP-", "KUBE-SERVICES"] {
        assert_eq!(commented(&rules, chain), commented(&listed, chain), "the kernel has what is wanted");
    }
    (commented(&rules, "KUBE-SEP-"), commented(&rules, "KUBE-SERVICES"))
}

#[test]
fn rules_of_very_many_endpoints_have_no_comments() {
    for variant in Variant::ALL {
        let mut mode = portway_iptables::mode::with_kernel(Fake::new(Family::V4, variant), Family::V4);
        for (count, endpoints) in
            [(1, true), (1000, true), (1001, false), (950, false), (900, true), (950, true)]
        {
            assert_eq!(comments(&mut mode, count), (endpoints, true), "{count} endpoints");
        }
    }
}
