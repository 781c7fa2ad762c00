//! The fake returns the kernel's errors, and a refused transaction changes nothing.

use super::*;
use crate::rules::{self, TableNames};
use crate::table::ChainBody;
use crate::table::Name;
use portway_netlink::nft::{Chain, ChainKind, Data, Family, Hook, HookPoint, Rule, Verdict};

fn name(text: &str) -> Name {
    text.into()
}

fn element(n: u8, verdict: Verdict) -> Element {
    let key = rules::frontend_key(None, portway_model::Protocol::Tcp, n.into());
    Element::map(key, Data::Verdict(verdict))
}

/// A base chain that looks up `map`, whose only element goes to the chain `side`.
fn start() -> Fake {
    let map = rules::verdict_map(&name("map"), Family::Ipv4, false);
    let hook = Some(Hook { kind: ChainKind::Nat, point: HookPoint::Prerouting, priority: 0, accept: true });
    let exprs = rules::ExprBuilder { family: Family::Ipv4 };
    let mut table = Table::default();
    let rules = vec![exprs.frontend_verdict(&[], false, &map.name)];
    table.chains.insert(name("base"), ChainBody { hook, rules });
    table.chain(&name("side"), Vec::new());
    table.element(&map.name, element(1, Verdict::Goto(name("side"))));
    table.sets.insert(map.name.clone(), map);
    let (tx, _) = crate::diff::diff(None, table.clone());
    let mut fake = Fake::default();
    fake.commit(&tx).unwrap();
    assert_eq!(fake.table(), Some(&table));
    fake
}

fn refuses(change: impl FnOnce(&mut Transaction), errno: i32) {
    let mut fake = start();
    let before = fake.table().cloned();
    let mut tx = Transaction::default();
    change(&mut tx);
    let error = fake.commit(&tx).expect_err("the transaction is refused");
    assert_eq!(error.errno(), Some(errno), "{error}");
    assert_eq!(fake.table().cloned(), before, "a refused transaction changed the table");
}

fn allows(change: impl FnOnce(&mut Transaction)) -> Fake {
    let mut fake = start();
    let mut tx = Transaction::default();
    change(&mut tx);
    fake.commit(&tx).unwrap();
    fake
}

#[test]
fn missing_objects_cannot_be_used() {
    let map = || name("map");
    refuses(|tx| drop(tx.delete.insert(map(), vec![element(2, Verdict::Drop)])), ENOENT);
    refuses(|tx| drop(tx.delete.insert(name("nothing"), vec![element(1, Verdict::Drop)])), ENOENT);
    refuses(|tx| drop(tx.add.insert(name("nothing"), vec![element(1, Verdict::Drop)])), ENOENT);
    refuses(|tx| drop(tx.add.insert(map(), vec![element(2, Verdict::Goto(name("nothing")))])), ENOENT);
    refuses(|tx| tx.flush_chains.extend([name("nothing")]), ENOENT);
    refuses(|tx| tx.delete_chains.push(name("nothing")), ENOENT);
    refuses(|tx| tx.delete_sets.push(name("nothing")), ENOENT);
    refuses(|tx| drop(tx.add_rules.insert(name("nothing"), vec![rules::jump(&name("side"))])), ENOENT);
    refuses(|tx| drop(tx.add_rules.insert(name("side"), vec![rules::jump(&name("nothing"))])), ENOENT);
    refuses(|tx| drop(tx.add_rules.insert(name("side"), vec![rules::choose(&name("nothing"), 2)])), ENOENT);
}

#[test]
fn the_same_element_cannot_be_deleted_twice() {
    let twice = vec![element(1, Verdict::Drop), element(1, Verdict::Drop)];
    refuses(|tx| drop(tx.delete.insert(name("map"), twice)), ENOENT);
}

#[test]
fn a_missing_table_cannot_be_changed() {
    let mut fake = Fake::default();
    let tx = Transaction { delete_chains: vec![name("side")], ..Transaction::default() };
    assert_eq!(fake.commit(&tx).unwrap_err().errno(), Some(ENOENT));
    let rebuild = Transaction { rebuild: true, add_table: true, ..Transaction::default() };
    assert_eq!(fake.commit(&rebuild).unwrap_err().errno(), Some(ENOENT));
    assert_eq!(fake.table(), None);
}

#[test]
fn existing_objects_cannot_be_added_with_another_definition() {
    refuses(|tx| drop(tx.add.insert(name("map"), vec![element(1, Verdict::Drop)])), EEXIST);
    refuses(|tx| tx.add_chains.push(Chain { name: name("base"), hook: None }), EEXIST);
    refuses(|tx| tx.add_sets.push(rules::choice_map(&name("map"), Family::Ipv4)), EEXIST);
    // Adding an object with the same definition is no error.
    let fake = allows(|tx| {
        tx.add_chains.push(Chain { name: name("side"), hook: None });
        tx.add_sets.push(rules::verdict_map(&name("map"), Family::Ipv4, false));
        tx.add.insert(name("map"), vec![element(1, Verdict::Goto(name("side"))).comment("ignored")]);
    });
    assert_eq!(fake.table(), start().table());
}

#[test]
fn objects_in_use_cannot_be_deleted() {
    refuses(|tx| tx.delete_chains.push(name("side")), EBUSY);
    refuses(|tx| tx.delete_sets.push(name("map")), EBUSY);
    // Deleting an element in the same transaction releases its chain, and flushing a chain releases its map.
    allows(|tx| {
        tx.delete.insert(name("map"), vec![element(1, Verdict::Drop)]);
        tx.delete_chains.push(name("side"));
    });
    let fake = allows(|tx| {
        tx.flush_chains.insert(name("base"));
        tx.delete_sets.push(name("map"));
        tx.delete_chains.push(name("side"));
    });
    assert_eq!(fake.table().map(|t| (t.chains.len(), t.sets.len(), t.elements.len())), Some((1, 0, 0)));
}

#[test]
fn an_element_can_be_replaced_in_one_transaction() {
    let fake = allows(|tx| {
        tx.delete.insert(name("map"), vec![element(1, Verdict::Drop)]);
        tx.add.insert(name("map"), vec![element(1, Verdict::Drop)]);
    });
    assert_eq!(fake.table().unwrap().elements[&name("map")], [element(1, Verdict::Drop)]);
}

#[test]
fn invalid_rules_and_elements_are_refused() {
    let side = name("side");
    refuses(|tx| drop(tx.add_rules.insert(side.clone(), vec![rules::jump(&side)])), ELOOP);
    refuses(|tx| drop(tx.add_rules.insert(side.clone(), vec![rules::jump(&name("base"))])), EOPNOTSUPP);
    let masquerade = vec![Rule { exprs: vec![rules::masquerade()] }];
    refuses(|tx| drop(tx.add_rules.insert(side.clone(), masquerade)), EOPNOTSUPP);
    let short = Element::map(Key::new(), Data::Verdict(Verdict::Drop));
    refuses(|tx| drop(tx.add.insert(name("map"), vec![short])), EINVAL);
    let no_value = Element { data: None, ..element(3, Verdict::Drop) };
    refuses(|tx| drop(tx.add.insert(name("map"), vec![no_value])), EINVAL);
}

#[test]
fn ranges_may_be_adjacent_but_not_overlap() {
    let names = TableNames::default();
    let set = rules::source_range_set(&names.source_ranges, Family::Ipv4);
    let range = |from: u8, to: u8| {
        let key = |n: u8| Key::new().field(&[10, 0, 0, n]).field(&[10, 9, 9, 9]).field(&[6]).field(&[0, 80]);
        Element { key_end: Some(Box::new(key(to))), ..Element::key(key(from)) }
    };
    let with = |ranges: Vec<Element>| {
        let set = set.clone();
        move |tx: &mut Transaction| {
            tx.add.insert(set.name.clone(), ranges);
            tx.add_sets.push(set);
        }
    };
    allows(with(vec![range(1, 4), range(5, 9)]));
    refuses(with(vec![range(1, 4), range(4, 9)]), EEXIST);
    let set = rules::address_ranges(&names.service_cidrs, Family::Ipv4);
    let boundary =
        |n: u8, end| Element { interval_end: end, ..Element::key(Key::new().field(&[n, 0, 0, 0])) };
    let with = |boundaries: Vec<Element>| {
        let set = set.clone();
        move |tx: &mut Transaction| {
            tx.add.insert(set.name.clone(), boundaries);
            tx.add_sets.push(set);
        }
    };
    let adjacent = [(1, false), (2, true), (2, false), (3, true), (9, false)];
    allows(with(adjacent.map(|(n, end)| boundary(n, end)).into()));
    let nested = [(1, false), (2, false), (3, true), (4, true)];
    refuses(with(nested.map(|(n, end)| boundary(n, end)).into()), EEXIST);
}

#[test]
fn faults_hit_the_commits_they_were_injected_into() {
    let mut fake = start();
    let before = fake.table().cloned();
    fake.fail(2, Fault::Refuse(ENOBUFS));
    fake.fail(3, Fault::LoseAnswer);
    let chain = |n: &str| {
        let chain = Chain { name: name(n), hook: None };
        Transaction { add_chains: vec![chain], ..Transaction::default() }
    };
    fake.commit(&chain("first")).unwrap();
    let error = fake.commit(&chain("second")).unwrap_err();
    assert!(error.is_transient() && error.errno() == Some(ENOBUFS), "{error}");
    assert!(matches!(fake.commit(&chain("third")), Err(Error::NoAnswer(_))));
    fake.commit(&chain("fourth")).unwrap();
    let has = |n: &str| fake.table().unwrap().chains.contains_key(n);
    assert_eq!(["first", "second", "third", "fourth"].map(has), [true, false, true, true]);
    assert_ne!(fake.table().cloned(), before);
}
