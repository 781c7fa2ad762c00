//! Taking over from kube-proxy, and leaving nothing behind.

use crate::node::mode;
use crate::ours::{FIREWALL, foreign, ours, settle_others};
use crate::tamper::tamper;
use crate::under_test::mode_among_others;
use crate::{assert_from_scratch, variants};
use portway_dataplane::Settings;
use portway_iptables::Iptables;
use portway_model::Family;
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::objects::Endpoint;
use portway_testkit::random::{cases, changes, families, two_services};
use portway_xtables::chains::Table;
use portway_xtables::fake::Fake;
use portway_xtables::leftovers::{find, remove};
use portway_xtables::{LOCALHOST_COUNTER, Variant};
use proptest::prelude::*;

/// What kube-proxy 1.36 has on a node, with the kubelet's own.
const KUBE_PROXY: &str = include_str!("kube-proxy.save");
/// The kubelet's.
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

/// The Service that kube-proxy's rules lead to.
fn cluster() -> TestCluster {
    TestCluster::new().service(service("web", 1)).slice("web", &Endpoint::all(&["a", "c"]))
}

fn after(script: &str) -> Iptables<Fake> {
    let mut mode = mode(V4, Variant::Legacy);
    settle_others(mode.program().kernel(), V4);
    mode.program().kernel().run(script).unwrap();
    mode
}

/// Only the rules of other programs are left; tables may have been created.
fn only_others_are_left(kernel: &Fake, others: &Fake) {
    let lines = |fake: &Fake| {
        let mut lines = foreign(fake.tables());
        lines.extend(ours(fake.tables()).lines());
        lines
    };
    assert_eq!(lines(kernel), lines(others));
}

#[test]
fn kube_proxys_rules_become_ours() {
    let mut mode = after(KUBE_PROXY);
    let others = foreign(mode.program().kernel().tables());
    let report = mode.sync(&settings(), cluster().all(V4)).unwrap();
    assert!(report.drift.is_empty(), "what another program left is nobody's tampering: {}", report.drift);
    assert_eq!(foreign(mode.program().kernel().tables()), others);
    let firewall = mode.program().kernel().tables().rules(Table::Filter, FIREWALL).map(<[_]>::len);
    assert_eq!(firewall, Some(1), "the kubelet's");
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
    // Endpoints' chains are the same, and were not touched.
    assert!(!mode.program().kernel().last().contains("-A KUBE-SEP-"), "{}", mode.program().kernel().last());
    remove_leftovers(&mut mode);
    only_others_are_left(mode.program().kernel(), after(KUBELET).program().kernel());
}

#[test]
fn kube_proxys_rules_are_removed() {
    let mut kubelet = after(KUBELET);
    let mut mode = after(KUBE_PROXY);
    let found = find(mode.program().kernel(), V4).unwrap();
    assert_eq!(mode.program().kernel().restores(), 0, "looking changes nothing");
    assert_eq!(remove(mode.program().kernel(), V4).unwrap(), found);
    insta::assert_snapshot!(found.join("\n"), @r"
    table nat: KUBE-MARK-MASQ, KUBE-NODEPORTS, KUBE-POSTROUTING, KUBE-PROXY-CANARY, KUBE-SERVICES and 6 chains of Services, and 3 rules that lead to them
    table filter: KUBE-EXTERNAL-SERVICES, KUBE-FORWARD, KUBE-NODEPORTS, KUBE-PROXY-CANARY, KUBE-PROXY-FIREWALL, KUBE-SERVICES, and 9 rules that lead to them
    table mangle: KUBE-PROXY-CANARY
    ");
    only_others_are_left(mode.program().kernel(), kubelet.program().kernel());
    assert_eq!(find(mode.program().kernel(), V4).unwrap(), [""; 0]);
    assert_eq!(remove(mode.program().kernel(), V4).unwrap(), [""; 0]);
    assert_eq!(mode.program().kernel().restores(), 1, "there is nothing to do a second time");
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
    let mut mode = after(old);
    remove(mode.program().kernel(), V4).unwrap();
    only_others_are_left(mode.program().kernel(), after("").program().kernel());
    // A mode that starts instead of cleaning up comes to the same.
    let mut mode = after(old);
    let mut cluster = cluster();
    mode.sync(&settings(), cluster.all(V4)).unwrap();
    assert_from_scratch(&mut mode, &mut cluster, V4, &settings());
}

/// A foreign chain that jumps to a Service, to another of our chains, and to a chain of an older version.
const HOLDS: &str = "*nat
:KUBE-XLB-CDGGSHYLG3RE2FKL - [0:0]
:THEIRS - [0:0]
-A KUBE-XLB-CDGGSHYLG3RE2FKL -j KUBE-SEP-GWQABTP5GBYXHJY5
-A THEIRS -m comment --comment \"we know what we do\" -g KUBE-MARK-MASQ
-A THEIRS -j KUBE-XLB-CDGGSHYLG3RE2FKL
-A THEIRS -d 10.96.0.1/32 -j KUBE-SVC-CDGGSHYLG3RE2FKL
COMMIT
";

#[test]
fn chains_that_others_lead_to_are_emptied_but_stay() {
    let mut mode = after("");
    mode.sync(&settings(), cluster().all(V4)).unwrap();
    mode.program().kernel().run(HOLDS).unwrap();
    let said = remove(mode.program().kernel(), V4).unwrap();
    insta::assert_snapshot!(said.join("\n"), @r#"
    table nat: KUBE-NODEPORTS, KUBE-POSTROUTING, KUBE-SERVICES and 2 chains of Services, and 3 rules that lead to them
    table filter: KUBE-CLUSTER-IPS, KUBE-EXTERNAL-SERVICES, KUBE-FORWARD, KUBE-NODEPORTS, KUBE-PROXY-FIREWALL, KUBE-SERVICES, and 10 rules that lead to them
    table mangle: KUBE-PROXY-CANARY
    chain KUBE-MARK-MASQ in table nat is emptied, but stays: `-A THEIRS -m comment --comment "we know what we do" -g KUBE-MARK-MASQ` leads to it
    chain KUBE-XLB-CDGGSHYLG3RE2FKL in table nat is emptied, but stays: `-A THEIRS -j KUBE-XLB-CDGGSHYLG3RE2FKL` leads to it
    chain KUBE-SVC-CDGGSHYLG3RE2FKL in table nat is emptied, but stays: `-A THEIRS -d 10.96.0.1/32 -j KUBE-SVC-CDGGSHYLG3RE2FKL` leads to it
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
    assert_eq!(tables.rules(Table::Nat, "THEIRS").map(<[_]>::len), Some(3), "that is not for us to change");
    assert_eq!(remove(mode.program().kernel(), V4).unwrap(), [""; 0]);
}

#[test]
fn the_kubelets_chain_may_lead_to_us_too() {
    let mut mode = after(KUBELET);
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
fn a_service_that_others_lead_to_can_go_and_come() {
    let mut cluster = cluster().service(service("other", 2)).slice("other", &Endpoint::all(&["b"]));
    let mut mode = after("");
    mode.sync(&settings(), cluster.all(V4)).unwrap();
    mode.program().kernel().run(HOLDS).unwrap();
    let others = foreign(mode.program().kernel().tables());
    cluster.delete("web");
    cluster.apply_hosts("other", &["b", "d"]);
    let report = mode.sync(&settings(), cluster.changes(V4)).unwrap();
    assert!(report.refused.is_empty(), "{:?}", report.refused);
    let chain = |mode: &mut Iptables<Fake>| {
        mode.program().kernel().tables().rules(Table::Nat, "KUBE-SVC-CDGGSHYLG3RE2FKL").map(<[_]>::len)
    };
    assert_eq!(chain(&mut mode), Some(0), "it leads nowhere any more");
    let drift = mode.verify().unwrap();
    assert!(drift.is_empty(), "{drift}");
    let restores = mode.program().kernel().restores();
    mode.mark_stale();
    mode.sync(&settings(), Vec::new()).unwrap();
    assert_eq!(mode.program().kernel().restores(), restores, "{}", mode.program().kernel().last());
    cluster.apply(service("web", 1));
    mode.sync(&settings(), cluster.changes(V4)).unwrap();
    assert_eq!(chain(&mut mode), Some(3));
    assert_eq!(foreign(mode.program().kernel().tables()), others);
}

/// Node ports at 127.0.0.1.
fn localhost() -> Settings {
    Settings {
        localhost_node_ports: true,
        node_ports: portway_dataplane::NodePortAddresses::All,
        ..settings()
    }
}

#[test]
fn what_was_turned_on_is_turned_off_again_and_nothing_else() {
    for kubelet in ["", KUBELET] {
        for was_on in [false, true] {
            let mut mode = after(kubelet);
            mode.program().kernel().route_localnet = Some(was_on);
            mode.sync(&localhost(), cluster().all(V4)).unwrap();
            assert_eq!(mode.program().kernel().route_localnet, Some(true));
            assert!(mode.program().kernel().counts.as_ref().unwrap().contains(LOCALHOST_COUNTER));
            // A new process knows by what it finds.
            let mut again = self::mode(V4, Variant::Legacy);
            *again.program().kernel() = mode.program().kernel().clone();
            again.sync(&localhost(), cluster().all(V4)).unwrap();
            assert_eq!(
                again.program().kernel().restores(),
                mode.program().kernel().restores(),
                "{}",
                again.program().kernel().last()
            );
            again.sync(&settings(), Vec::new()).unwrap();
            assert_eq!(again.program().kernel().route_localnet, Some(was_on));
            // If an administrator turns it on now, it stays on.
            again.program().kernel().route_localnet = Some(true);
            again.mark_stale();
            again.sync(&settings(), Vec::new()).unwrap();
            assert_eq!(again.program().kernel().route_localnet, Some(true));
            // So does a cleanup.
            remove(mode.program().kernel(), V4).unwrap();
            assert_eq!(mode.program().kernel().route_localnet, Some(was_on));
            assert!(mode.program().kernel().counts.as_ref().unwrap().is_empty());
            if was_on && kubelet.is_empty() {
                // Without the rule, neighbours could use what the administrator turned on.
                let text = mode.program().kernel().tables().to_string();
                assert!(text.contains("block incoming localnet connections"), "{text}");
                assert!(!text.contains("KUBE-SERVICES"), "{text}");
                mode.program().kernel().route_localnet = Some(false);
                remove(mode.program().kernel(), V4).unwrap();
            }
            only_others_are_left(mode.program().kernel(), after(kubelet).program().kernel());
        }
    }
}

#[test]
fn a_kernel_that_cannot_count_or_be_asked_will_do() {
    let mut mode = after("");
    mode.program().kernel().counts = None;
    mode.program().kernel().route_localnet = None;
    let report = mode.sync(&localhost(), cluster().all(V4)).unwrap();
    assert!(report.warnings.is_empty() && report.refused.is_empty(), "{report:?}");
    assert!(!mode.program().kernel().tables().to_string().contains("nfacct"));
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn whatever_happened_nothing_of_ours_is_left(
        family in families(), variant in variants(), changes in changes(6),
        tampers in prop::collection::vec(tamper(), 0..3), kubelet: bool,
    ) {
        let (mut cluster, mut settings) = (two_services(), settings());
        changes.iter().for_each(|change| change.make(&mut cluster, &mut settings));
        let mut mode = mode_among_others(family, variant);
        if kubelet && family == V4 {
            mode.program().kernel().run(KUBELET).unwrap();
        }
        mode.sync(&settings, cluster.all(family)).unwrap();
        tampers.iter().for_each(|t| t.apply(mode.program().kernel().tables_mut()));
        let others = foreign(mode.program().kernel().tables());
        // A running agent repairs changes by other processes before it stops.
        mode.mark_stale();
        mode.sync(&settings, Vec::new()).unwrap();
        remove_leftovers(&mut mode);
        prop_assert_eq!(&foreign(mode.program().kernel().tables()), &others);
        let left: Vec<String> = ours(mode.program().kernel().tables()).lines().collect();
        let kubelets = left.iter().all(|line| line.contains(FIREWALL));
        prop_assert!(left.is_empty() || kubelet && kubelets, "{:#?}", left);
        prop_assert_eq!(mode.program().kernel().route_localnet, Some(false));
        // It can be done twice, and undone.
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
