//! The size of a transaction depends on the change, not on the size of the cluster.

use crate::node::mode;
use portway_model::Family;
use portway_nftables::diff::Transaction;
use portway_testkit::cluster::{HTTP, TestCluster, service, settings};
use portway_testkit::objects::{AddressBook, Endpoint, EndpointSlice};
use std::net::IpAddr;

fn elements(tx: &Transaction) -> usize {
    tx.add.values().chain(tx.delete.values()).map(Vec::len).sum()
}

/// A thousand endpoints whose hosts are numbers, `without` one and `with` another.
fn thousand(without: Option<u32>, with: Option<u32>) -> Vec<Endpoint> {
    let numbers = (0..1000u32).filter(|n| Some(*n) != without).chain(with);
    numbers.map(|n| Endpoint::ready(&n.to_string())).collect()
}

/// Hosts whose names are numbers, all on another node.
struct Numbered(Family);

impl AddressBook for Numbered {
    fn family(&self) -> Family {
        self.0
    }

    fn address(&self, host: &str) -> IpAddr {
        let n: u32 = host.parse().unwrap();
        let text = match self.0 {
            Family::V4 => format!("10.244.{}.{}", n / 250, n % 250),
            Family::V6 => format!("fd10:244::{n:x}:1"),
        };
        text.parse().unwrap()
    }

    fn node_of(&self, _: &str) -> String {
        "node2".to_owned()
    }
}

fn apply(cluster: &mut TestCluster, endpoints: &[Endpoint]) {
    for family in Family::ALL {
        let slice = EndpointSlice::new("big", &[HTTP], endpoints).name(&format!("big-{family}"));
        cluster.apply(slice.manifest(&Numbered(family)));
    }
}

/// The numbers of elements, rules and other objects in the transaction of each step, with this many other Services.
fn costs(others: u8, family: Family) -> Vec<(usize, usize, usize)> {
    let mut cluster = TestCluster::new().service(service("big", 1));
    apply(&mut cluster, &thousand(None, None));
    for n in 2..2 + others {
        cluster.apply(service(&format!("other{n}"), n));
        cluster.apply_hosts(&format!("other{n}"), &["c"]);
    }
    let mut mode = cluster.programmed(mode(family), &settings());
    let steps = [
        thousand(Some(500), None),
        thousand(Some(500), Some(1000)),
        thousand(Some(500), Some(1001)),
        thousand(None, Some(1001)),
        thousand(Some(0), Some(1001)),
    ];
    steps
        .iter()
        .map(|endpoints| {
            apply(&mut cluster, endpoints);
            mode.sync(&settings(), cluster.changes(family)).unwrap();
            let tx = mode.program().kernel().last();
            let rules = tx.add_rules.values().map(Vec::len).sum();
            (elements(tx), rules, tx.add_chains.len() + tx.delete_chains.len() + tx.add_sets.len())
        })
        .collect()
}

#[test]
fn a_change_of_one_endpoint_of_a_thousand_changes_few_elements() {
    for family in Family::ALL {
        let alone = costs(0, family);
        for (elements, rules, objects) in &alone {
            assert!(*elements <= 8 && *rules <= 2 && *objects <= 2, "{alone:?}");
        }
        assert_eq!(alone, costs(200, family), "the number of other Services changed the transactions");
    }
}

#[test]
fn unchanged_plans_cause_no_commit() {
    let mut cluster = TestCluster::new().service(service("web", 1));
    let mut mode = cluster.programmed(mode(Family::V4), &settings());
    let commits = mode.program().kernel().commits();
    let report = mode.sync(&settings(), cluster.all(Family::V4)).unwrap();
    assert_eq!((report.added, report.removed), (0, 0));
    assert_eq!(mode.program().kernel().commits(), commits, "unchanged plans caused a commit");
}
