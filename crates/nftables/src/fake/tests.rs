//! The fake refuses what the kernel refuses, and leaves everything as it was.

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

/// A base chain that looks up `map`, whose one element leads to `side`.
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
    let error = fake.commit(&tx).expect_err("this cannot be done");
    assert_eq!(error.errno(), Some(errno), "{error}");
    assert_eq!(fake.table().cloned(), before, "a refused transaction leaves its traces");
}

fn allows(change: impl FnOnce(&mut Transaction)) -> Fake {
    let mut fake = start();
    let mut tx = Transaction::default();
    change(&mut tx);
    fake.commit(&tx).unwrap();
    fake
}

#[test]
fn what_is_not_there_cannot_be_used() {
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
fn without_a_table_nothing_can_be_changed() {
    let mut fake = Fake::default();
    let tx = Transaction { delete_chains: vec![name("side")], ..Transaction::default() };
    assert_eq!(fake.commit(&tx).unwrap_err().errno(), Some(ENOENT));
    let rebuild = Transaction { rebuild: true, add_table: true, ..Transaction::default() };
    assert_eq!(fake.commit(&rebuild).unwrap_err().errno(), Some(ENOENT));
    assert_eq!(fake.table(), None);
}

#[test]
fn what_is_there_cannot_become_something_else() {
    refuses(|tx| drop(tx.add.insert(name("map"), vec![element(1, Verdict::Drop)])), EEXIST);
    refuses(|tx| tx.add_chains.push(Chain { name: name("base"), hook: None }), EEXIST);
    refuses(|tx| tx.add_sets.push(rules::choice_map(&name("map"), Family::Ipv4)), EEXIST);
    // But it may be made again as it is.
    let fake = allows(|tx| {
        tx.add_chains.push(Chain { name: name("side"), hook: None });
        tx.add_sets.push(rules::verdict_map(&name("map"), Family::Ipv4, false));
        tx.add.insert(name("map"), vec![element(1, Verdict::Goto(name("side"))).comment("ignored")]);
    });
    assert_eq!(fake.table(), start().table());
}

#[test]
fn what_is_in_use_cannot_go() {
    refuses(|tx| tx.delete_chains.push(name("side")), EBUSY);
    refuses(|tx| tx.delete_sets.push(name("map")), EBUSY);
    // An element that goes in the same transaction frees its chain, and a flushed chain its map.
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
fn an_element_can_be_replaced_in_one_go() {
    let fake = allows(|tx| {
        tx.delete.insert(name("map"), vec![element(1, Verdict::Drop)]);
        tx.add.insert(name("map"), vec![element(1, Verdict::Drop)]);
    });
    assert_eq!(fake.table().unwrap().elements[&name("map")], [element(1, Verdict::Drop)]);
}

#[test]
fn what_makes_no_sense_is_refused() {
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
fn ranges_may_touch_but_not_overlap() {
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
    let mark = |n: u8, end| Element { interval_end: end, ..Element::key(Key::new().field(&[n, 0, 0, 0])) };
    let with = |marks: Vec<Element>| {
        let set = set.clone();
        move |tx: &mut Transaction| {
            tx.add.insert(set.name.clone(), marks);
            tx.add_sets.push(set);
        }
    };
    allows(with(vec![mark(1, false), mark(2, true), mark(2, false), mark(3, true), mark(9, false)]));
    refuses(with(vec![mark(1, false), mark(2, false), mark(3, true), mark(4, true)]), EEXIST);
}

#[test]
fn faults_come_when_they_are_told_to() {
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
