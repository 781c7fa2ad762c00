//! The cost of a change is that of the change.

use crate::node::mode;
use portway_dataplane::Dataplane;
use portway_dataplane::world::{World, endpoint, settings};
use portway_model::Family;
use portway_nftables::diff::Transaction;
use serde_json::{Value, json};

fn elements(tx: &Transaction) -> usize {
    tx.add.values().chain(tx.delete.values()).map(Vec::len).sum()
}

fn thousand(without: Option<u32>, with: Option<u32>) -> Vec<Value> {
    let numbers = (0..1000u32).filter(|n| Some(*n) != without).chain(with);
    numbers.map(|n| json!({"place": "a", "nodeName": "node2", "number": n})).collect()
}

/// Gives every endpoint an address of its own.
fn apply(world: &mut World, endpoints: &[Value]) {
    for family in Family::ALL {
        let spread: Vec<Value> = endpoints
            .iter()
            .map(|e| {
                let n = e["number"].as_u64().unwrap();
                let address = match family {
                    Family::V4 => format!("10.244.{}.{}", n / 250, n % 250),
                    Family::V6 => format!("fd10:244::{n:x}:1"),
                };
                json!({"addresses": [address], "nodeName": "node2"})
            })
            .collect();
        world.apply_raw_slice("big", family, json!({"name": "http", "port": 8080}), &spread);
    }
}

/// What one step costs in a cluster with so many other Services.
fn costs(others: u8, family: Family) -> Vec<(usize, usize, usize)> {
    let mut world = World::new().service("big", 1, json!({}), json!({}));
    apply(&mut world, &thousand(None, None));
    for n in 2..2 + others {
        world.apply_service(&format!("other{n}"), n, json!({}), json!({}));
        world.apply_slice(&format!("other{n}"), json!({"name": "http", "port": 8080}), &[endpoint("c")]);
    }
    let mut mode = world.programmed(mode(family), &settings());
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
            apply(&mut world, endpoints);
            mode.sync(&settings(), world.changes(family)).unwrap();
            let tx = mode.kernel().last();
            let rules = tx.add_rules.values().map(Vec::len).sum();
            (elements(tx), rules, tx.add_chains.len() + tx.delete_chains.len() + tx.add_sets.len())
        })
        .collect()
}

#[test]
fn one_endpoint_of_a_thousand_is_a_handful_of_elements() {
    for family in Family::ALL {
        let alone = costs(0, family);
        for (elements, rules, objects) in &alone {
            assert!(*elements <= 8 && *rules <= 2 && *objects <= 2, "{alone:?}");
        }
        assert_eq!(alone, costs(200, family), "other Services make it dearer");
    }
}

#[test]
fn nothing_changed_costs_nothing() {
    let mut world = World::new().service("web", 1, json!({}), json!({}));
    let mut mode = world.programmed(mode(Family::V4), &settings());
    let commits = mode.kernel().commits();
    let report = mode.sync(&settings(), world.all(Family::V4)).unwrap();
    assert_eq!((report.added, report.removed), (0, 0));
    assert_eq!(mode.kernel().commits(), commits, "the kernel was told nothing");
}
