//! Adopts the rules of kube-proxy, and removes all rules of Portway and kube-proxy.

use crate::node::mode;
use crate::proxy_rules::{FIREWALL, add_foreign_rules, foreign, proxy_rules};
use crate::tamper::tamper;
use crate::under_test::mode_with_foreign_rules;
use crate::{assert_from_scratch, variants};
use portway_iptables::Iptables;
use portway_model::Family;
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::objects::Endpoint;
use portway_testkit::random::{cases, changes, families, two_services};
use portway_xtables::Variant;
use portway_xtables::chains::Table;
use portway_xtables::fake::Fake;
use portway_xtables::leftovers::{find, remove};
use proptest::prelude::*;

/// The rules of kube-proxy 1.36 and of the kubelet on a node.
const KUBE_PROXY: &str = include_str!("kube-proxy.save");
/// The rules of the kubelet alone.
const KUBELET: &str = "*nat
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
";
const V4: Family = Family::V4;

/// A cluster with the Service of `KUBE_PROXY`.
fn cluster() -> TestCluster {
    TestCluster::new().service(service("web", 1)).slice("web", &Endpoint::all(&["a", "c"]))
}

/// The mode in a kernel that has foreign rules, and in which `script` was run.
fn mode_after(script: &str) -> Iptables<Fake> {
    let mut mode = mode(V4, Variant::Legacy);
    add_foreign_rules(mode.program().kernel(), V4);
    mode.program().kernel().run(script).unwrap();
    mode
}

/// Asserts that the kernel has the same rules as `expected`, which has no rules of a proxy. Empty tables are ignored.
fn assert_only_foreign_rules_left(kernel: &Fake, expected: &Fake) {
    let lines = |fake: &Fake| {
        let mut lines = foreign(fake.tables());
        lines.extend(proxy_rules(fake.tables()).lines());
        lines
    };
    assert_eq!(lines(kernel), lines(expected));
}

#[test]
fn rules_of_kube_proxy_are_adopted() {
    let mut mode = mode_after(KUBE_PROXY);
    let foreign_rules = foreign(mode.program().kernel().tables());
    let report = mode.sync(&settings(), cluster().all(V4)).unwrap();
    assert!(report.drift.is_empty(), "rules of kube-proxy are not drift: {}", report.drift);
    assert_eq!(foreign(mode.program().kernel().tables()), foreign_rules);
    let firewall = mode.program().kernel().tables().rules(Table::Filter, FIREWALL).map(<[_]>::len);
    assert_eq!(firewall, Some(1), "the rule of the kubelet");
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
    // The chains of endpoints are the same as kube-proxy's, and are not written.
    assert!(!mode.program().kernel().last().contains("-A KUBE-SEP-"), "{}", mode.program().kernel().last());
    remove_leftovers(&mut mode);
    assert_only_foreign_rules_left(mode.program().kernel(), mode_after(KUBELET).program().kernel());
}

#[test]
fn rules_of_kube_proxy_are_removed() {
    let mut kubelet = mode_after(KUBELET);
    let mut mode = mode_after(KUBE_PROXY);
    let found = find(mode.program().kernel(), V4).unwrap();
    assert_eq!(mode.program().kernel().restores(), 0, "finding the rules does not change them");
    assert_eq!(remove(mode.program().kernel(), V4).unwrap(), found);
    insta::assert_snapshot!(found.join("\n"), @r"
    table nat: KUBE-MARK-MASQ, KUBE-NODEPORTS, KUBE-POSTROUTING, KUBE-PROXY-CANARY, KUBE-SERVICES and 6 chains of Services, and 3 rules that jump to them
    table filter: KUBE-EXTERNAL-SERVICES, KUBE-FORWARD, KUBE-NODEPORTS, KUBE-PROXY-CANARY, KUBE-PROXY-FIREWALL, KUBE-SERVICES, and 9 rules that jump to them
    table mangle: KUBE-PROXY-CANARY
    ");
    assert_only_foreign_rules_left(mode.program().kernel(), kubelet.program().kernel());
    assert_eq!(find(mode.program().kernel(), V4).unwrap(), [""; 0]);
    assert_eq!(remove(mode.program().kernel(), V4).unwrap(), [""; 0]);
    assert_eq!(mode.program().kernel().restores(), 1, "the second call finds no rules");
}

#[test]
fn rules_of_older_versions_and_other_modes_are_removed() {
    let old = "*nat
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-XLB-CDGGSHYLG3RE2FKL - [0:0]
:KUBE-SEP-GWQABTP5GBYXHJY5 - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-XLB-CDGGSHYLG3RE2FKL -j KUBE-SEP-GWQABTP5GBYXHJY5
COMMIT
*filter
:KUBE-NODE-PORT - [0:0]
:KUBE-IPVS-FILTER - [0:0]
-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT
COMMIT
";
    let mut mode = mode_after(old);
    remove(mode.program().kernel(), V4).unwrap();
    assert_only_foreign_rules_left(mode.program().kernel(), mode_after("").program().kernel());
    // A mode that starts replaces them, too.
    let mut mode = mode_after(old);
    let mut cluster = cluster();
    mode.sync(&settings(), cluster.all(V4)).unwrap();
    assert_from_scratch(&mut mode, &mut cluster, V4, &settings());
}

/// A foreign chain with jumps to the chain of a Service, to a constant proxy chain, and to a chain of an older version.
const FOREIGN_JUMPS: &str = "*nat
:KUBE-XLB-CDGGSHYLG3RE2FKL - [0:0]
:FOREIGN - [0:0]
-A KUBE-XLB-CDGGSHYLG3RE2FKL -j KUBE-SEP-GWQABTP5GBYXHJY5
-A FOREIGN -m comment --comment \"jump of another program\" -g KUBE-MARK-MASQ
-A FOREIGN -j KUBE-XLB-CDGGSHYLG3RE2FKL
-A FOREIGN -d 10.96.0.1/32 -j KUBE-SVC-CDGGSHYLG3RE2FKL
COMMIT
";

#[test]
fn chains_with_foreign_jumps_are_emptied_but_not_removed() {
    let mut mode = mode_after("");
    mode.sync(&settings(), cluster().all(V4)).unwrap();
    mode.program().kernel().run(FOREIGN_JUMPS).unwrap();
    let removed = remove(mode.program().kernel(), V4).unwrap();
    insta::assert_snapshot!(removed.join("\n"), @r#"
    table nat: KUBE-NODEPORTS, KUBE-POSTROUTING, KUBE-SERVICES and 2 chains of Services, and 3 rules that jump to them
    table filter: KUBE-CLUSTER-IPS, KUBE-EXTERNAL-SERVICES, KUBE-FORWARD, KUBE-NODEPORTS, KUBE-PROXY-FIREWALL, KUBE-SERVICES, and 10 rules that jump to them
    table mangle: KUBE-PROXY-CANARY
    chain KUBE-MARK-MASQ in table nat is emptied, but not removed: `-A FOREIGN -m comment --comment "jump of another program" -g KUBE-MARK-MASQ` refers to it
    chain KUBE-XLB-CDGGSHYLG3RE2FKL in table nat is emptied, but not removed: `-A FOREIGN -j KUBE-XLB-CDGGSHYLG3RE2FKL` refers to it
    chain KUBE-SVC-CDGGSHYLG3RE2FKL in table nat is emptied, but not removed: `-A FOREIGN -d 10.96.0.1/32 -j KUBE-SVC-CDGGSHYLG3RE2FKL` refers to it
    "#);
    let tables = mode.program().kernel().tables();
    let nat: Vec<(&str, usize)> = tables
        .chains()
        .filter(|(t, chain, _)| *t == Table::Nat && chain.starts_with("KUBE-"))
        .map(|(_, chain, rules)| (chain, rules.len()))
        .collect();
    assert_eq!(
        nat,
        [("KUBE-MARK-MASQ", 0), ("KUBE-SVC-CDGGSHYLG3RE2FKL", 0), ("KUBE-XLB-CDGGSHYLG3RE2FKL", 0)]
    );
    assert_eq!(tables.rules(Table::Nat, "FOREIGN").map(<[_]>::len), Some(3), "foreign rules are not changed");
    assert_eq!(remove(mode.program().kernel(), V4).unwrap(), [""; 0]);
}

#[test]
fn a_chain_with_a_jump_from_the_kubelets_chain_is_not_removed() {
    let mut mode = mode_after(KUBELET);
    mode.sync(&settings(), cluster().all(V4)).unwrap();
    mode.program().kernel().run("*filter\n-A KUBE-FIREWALL -j KUBE-PROXY-FIREWALL\nCOMMIT\n").unwrap();
    remove(mode.program().kernel(), V4).unwrap();
    let mut left = |chain| mode.program().kernel().tables().rules(Table::Filter, chain).map(<[_]>::len);
    assert_eq!(
        [left(FIREWALL), left("KUBE-PROXY-FIREWALL"), left("KUBE-SERVICES")],
        [Some(2), Some(0), None]
    );
}

#[test]
fn a_service_with_foreign_jumps_is_deleted_and_added_again() {
    let mut cluster = cluster().service(service("other", 2)).slice("other", &Endpoint::all(&["b"]));
    let mut mode = mode_after("");
    mode.sync(&settings(), cluster.all(V4)).unwrap();
    mode.program().kernel().run(FOREIGN_JUMPS).unwrap();
    let foreign_rules = foreign(mode.program().kernel().tables());
    cluster.delete("web");
    cluster.apply_hosts("other", &["b", "d"]);
    let report = mode.sync(&settings(), cluster.changes(V4)).unwrap();
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    let chain = |mode: &mut Iptables<Fake>| {
        mode.program().kernel().tables().rules(Table::Nat, "KUBE-SVC-CDGGSHYLG3RE2FKL").map(<[_]>::len)
    };
    assert_eq!(chain(&mut mode), Some(0), "the chain is empty");
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
    let restores = mode.program().kernel().restores();
    mode.mark_stale();
    mode.sync(&settings(), Vec::new()).unwrap();
    assert_eq!(mode.program().kernel().restores(), restores, "{}", mode.program().kernel().last());
    cluster.apply(service("web", 1));
    mode.sync(&settings(), cluster.changes(V4)).unwrap();
    assert_eq!(chain(&mut mode), Some(3));
    assert_eq!(foreign(mode.program().kernel().tables()), foreign_rules);
}

/// The rules with which an earlier release turned `route_localnet` on.
const TURNED_ON: &str = "*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FIREWALL -m comment --comment \"route_localnet was off before, and goes off with this chain\"
COMMIT
";

#[test]
fn route_localnet_is_turned_off_if_an_earlier_release_turned_it_on() {
    for by_sync in [true, false] {
        let mut mode = mode_after(TURNED_ON);
        mode.program().kernel().route_localnet = Some(true);
        if by_sync {
            mode.sync(&settings(), cluster().all(V4)).unwrap();
            let text = mode.program().kernel().tables().to_string();
            assert!(!text.contains("KUBE-FIREWALL"), "{text}");
            assert_eq!(mode.program().kernel().route_localnet, Some(false));
            // If an administrator turns the sysctl on now, it stays on.
            mode.program().kernel().route_localnet = Some(true);
            mode.mark_stale();
            mode.sync(&settings(), Vec::new()).unwrap();
            assert_eq!(mode.program().kernel().route_localnet, Some(true));
        }
        remove(mode.program().kernel(), V4).unwrap();
        assert_eq!(mode.program().kernel().route_localnet, Some(by_sync));
        assert_only_foreign_rules_left(mode.program().kernel(), mode_after("").program().kernel());
    }
}

/// Without the rule, other hosts could reach 127.0.0.1.
#[test]
fn the_rule_that_drops_martians_stays_while_another_program_has_route_localnet_on() {
    let recorded = TURNED_ON.lines().filter(|line| !line.contains("route_localnet was off"));
    let kube_proxy: String = recorded.map(|line| format!("{line}\n")).collect();
    let mut mode = mode_after(&kube_proxy);
    mode.program().kernel().route_localnet = Some(true);
    for _ in 0..2 {
        mode.mark_stale();
        mode.sync(&settings(), cluster().all(V4)).unwrap();
        let text = mode.program().kernel().tables().to_string();
        assert!(text.contains("block incoming localnet connections"), "{text}");
    }
    remove(mode.program().kernel(), V4).unwrap();
    assert_eq!(mode.program().kernel().route_localnet, Some(true));
    let text = mode.program().kernel().tables().to_string();
    assert!(
        text.contains("block incoming localnet connections") && !text.contains("KUBE-SERVICES"),
        "{text}"
    );
    mode.program().kernel().route_localnet = Some(false);
    remove(mode.program().kernel(), V4).unwrap();
    assert_only_foreign_rules_left(mode.program().kernel(), mode_after("").program().kernel());
}

#[test]
fn dropped_invalid_packets_are_counted_if_the_kernel_can() {
    let counted = "-m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP";
    let mut mode = mode_after("");
    mode.sync(&settings(), cluster().all(V4)).unwrap();
    assert!(mode.program().kernel().tables().to_string().contains(counted));
    remove(mode.program().kernel(), V4).unwrap();
    assert!(mode.program().kernel().counters.as_ref().unwrap().is_empty());
    let mut mode = mode_after("");
    mode.program().kernel().counters = None;
    let report = mode.sync(&settings(), cluster().all(V4)).unwrap();
    assert!(report.warnings.is_empty() && report.refused.is_empty(), "{report:?}");
    assert!(!mode.program().kernel().tables().to_string().contains("nfacct"));
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn no_proxy_rule_is_left_after_random_changes(
        family in families(), variant in variants(), changes in changes(6),
        tampers in prop::collection::vec(tamper(), 0..3), kubelet: bool,
    ) {
        let (mut cluster, mut settings) = (two_services(), settings());
        changes.iter().for_each(|change| change.make(&mut cluster, &mut settings));
        let mut mode = mode_with_foreign_rules(family, variant);
        if kubelet && family == V4 {
            mode.program().kernel().run(KUBELET).unwrap();
        }
        mode.sync(&settings, cluster.all(family)).unwrap();
        tampers.iter().for_each(|t| t.apply(mode.program().kernel().tables_mut()));
        let foreign_rules = foreign(mode.program().kernel().tables());
        // A running agent repairs changes by other processes before it stops.
        mode.mark_stale();
        mode.sync(&settings, Vec::new()).unwrap();
        remove_leftovers(&mut mode);
        prop_assert_eq!(&foreign(mode.program().kernel().tables()), &foreign_rules);
        let left: Vec<String> = proxy_rules(mode.program().kernel().tables()).lines().collect();
        let only_firewall = left.iter().all(|line| line.contains(FIREWALL));
        prop_assert!(left.is_empty() || kubelet && only_firewall, "{:#?}", left);
        prop_assert_eq!(mode.program().kernel().route_localnet, Some(false));
        // A second removal does not write; a sync restores the rules.
        let restores = mode.program().kernel().restores();
        remove_leftovers(&mut mode);
        prop_assert_eq!(mode.program().kernel().restores(), restores);
        mode.mark_stale();
        mode.sync(&settings, Vec::new()).unwrap();
        prop_assert!(mode.verify().unwrap().is_empty());
    }
}

fn remove_leftovers(mode: &mut Iptables<Fake>) {
    let family = mode.family();
    remove(mode.program().kernel(), family).unwrap();
}
