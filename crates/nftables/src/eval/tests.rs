//! Evaluation of tables built by hand, including constructs that the mode does not render.

use super::*;
use crate::rules::{self, ExprBuilder};
use crate::table::ChainBody;
use portway_model::{Protocol, Target};
use portway_netlink::nft::expr::{Base, MetaKey};
use portway_netlink::nft::{self, Data, Element, Expr, Key, Register, Rule, Value};

const EXPRS: ExprBuilder = ExprBuilder { family: nft::Family::Ipv4 };

fn name(text: &str) -> Name {
    text.into()
}

fn table(chains: &[(&str, Vec<Rule>)]) -> Table {
    let mut table = Table::default();
    for (chain, rules) in chains {
        table.chain(&name(chain), rules.clone());
    }
    table
}

fn hook(mut table: Table, chain: &str, kind: ChainKind, point: HookPoint, priority: i32) -> Table {
    let body: &mut ChainBody = table.chains.get_mut(&name(chain)).unwrap();
    body.hook = Some(Hook { kind, point, priority, accept: true });
    table
}

fn forwarded(chains: &[(&str, Vec<Rule>)]) -> Table {
    hook(table(chains), "base", ChainKind::Filter, HookPoint::Forward, 0)
}

fn packet(to: &str) -> Packet {
    let to: std::net::SocketAddr = to.parse().unwrap();
    let (source, input) = ([10, 0, 0, 1].into(), Some("eth0".to_owned()));
    Packet { source, destination: to.ip(), protocol: Protocol::Tcp, port: to.port(), input }
}

fn end(table: &Table, to: &str) -> Verdict {
    eval(table, Family::V4, &packet(to), &Host::default()).verdict().unwrap().clone()
}

fn is(verdict: nft::Verdict) -> Rule {
    rules::rule([], verdict)
}

#[test]
fn evaluation_continues_after_a_jump_but_not_after_a_goto() {
    use nft::Verdict::{Accept, Drop, Return};
    let [side, other] = [name("side"), name("other")];
    let jump = |to: &Name| rules::jump(to);
    let goto = |to: &Name| rules::goto(to);
    type Chains = Vec<(&'static str, Vec<Rule>)>;
    let rows: Vec<(&str, Chains, Verdict)> = vec![
        ("empty", vec![("base", vec![])], Verdict::Untouched),
        (
            "rule after a jump",
            vec![("base", vec![jump(&side), is(Drop)]), ("side", vec![])],
            Verdict::Dropped,
        ),
        (
            "rule after a goto",
            vec![("base", vec![goto(&side), is(Drop)]), ("side", vec![])],
            Verdict::Untouched,
        ),
        (
            "return from a goto continues after the last jump",
            vec![
                ("base", vec![jump(&side), is(Drop)]),
                ("side", vec![goto(&other), is(Accept)]),
                ("other", vec![is(Return), is(Accept)]),
            ],
            Verdict::Dropped,
        ),
        ("return from a base chain", vec![("base", vec![is(Return), is(Drop)])], Verdict::Untouched),
        (
            "accept in a jumped-to chain ends the base chain",
            vec![("base", vec![jump(&side), is(Drop)]), ("side", vec![is(Accept)])],
            Verdict::Untouched,
        ),
    ];
    for (case, chains, expected) in rows {
        assert_eq!(end(&forwarded(&chains), "10.9.9.9:80"), expected, "{case}");
    }
}

#[test]
fn evaluation_of_looping_chains_ends() {
    let round = forwarded(&[("base", vec![rules::jump(&name("base"))])]);
    assert_eq!(end(&round, "10.9.9.9:80"), Verdict::Dropped);
    let round =
        forwarded(&[("base", vec![rules::goto(&name("side"))]), ("side", vec![rules::goto(&name("side"))])]);
    assert_eq!(end(&round, "10.9.9.9:80"), Verdict::Dropped);
}

#[test]
fn accept_ends_one_base_chain_and_priority_orders_base_chains() {
    let chains = table(&[("early", vec![is(nft::Verdict::Accept)]), ("base", vec![is(nft::Verdict::Drop)])]);
    let chains = hook(chains, "base", ChainKind::Filter, HookPoint::Forward, 5);
    let chains = hook(chains, "early", ChainKind::Filter, HookPoint::Forward, -5);
    let trace = eval(&chains, Family::V4, &packet("10.9.9.9:80"), &Host::default());
    assert_eq!(trace.verdict(), Some(&Verdict::Dropped));
    let hooks: Vec<String> = trace.paths[0].steps.iter().map(ToString::to_string).collect();
    assert_eq!(
        hooks,
        [
            "forward: table portway, chain early",
            "  chain early, rule 1",
            "forward: table portway, chain base",
            "  chain base, rule 1"
        ]
    );
}

#[test]
fn addresses_are_looked_up_in_ranges() {
    let set = rules::address_ranges(&name("ranges"), nft::Family::Ipv4);
    let drop = rules::rule(EXPRS.destination_in(&set.name), nft::Verdict::Drop);
    let mut table = forwarded(&[("base", vec![drop])]);
    let boundary = |a: [u8; 4], end| Element { interval_end: end, ..Element::key(Key::new().field(&a)) };
    // Two adjacent ranges, and one without an end element.
    let boundaries = [
        boundary([10, 0, 0, 0], false),
        boundary([10, 1, 0, 0], true),
        boundary([10, 1, 0, 0], false),
        boundary([10, 2, 0, 0], true),
        boundary([240, 0, 0, 0], false),
    ];
    boundaries.into_iter().for_each(|element| table.element(&set.name, element));
    table.sets.insert(set.name.clone(), set);
    table.normalize();
    for (to, inside) in [
        ("9.255.255.255:1", false),
        ("10.0.0.0:1", true),
        ("10.0.255.255:1", true),
        ("10.1.0.0:1", true),
        ("10.1.255.255:1", true),
        ("10.2.0.0:1", false),
        ("255.255.255.255:1", true),
    ] {
        let expected = if inside { Verdict::Dropped } else { Verdict::Untouched };
        assert_eq!(end(&table, to), expected, "{to}");
    }
}

#[test]
fn ranges_of_concatenations_match_in_every_field() {
    let set = rules::source_range_set(&name("ranges"), nft::Family::Ipv4);
    let drop = rules::rule(EXPRS.source_allowed(&set.name), nft::Verdict::Drop);
    let mut table = forwarded(&[("base", vec![drop])]);
    let key = |source: [u8; 4], port: u16| {
        Key::new().field(&source).field(&[10, 9, 9, 9]).field(&[6]).field(&port.to_be_bytes())
    };
    let end_of = Some(Box::new(key([10, 0, 0, 9], 90)));
    table.element(&set.name, Element { key_end: end_of, ..Element::key(key([10, 0, 0, 1], 80)) });
    table.sets.insert(set.name.clone(), set);
    for (to, inside) in
        [("10.9.9.9:80", true), ("10.9.9.9:90", true), ("10.9.9.9:91", false), ("10.9.9.8:80", false)]
    {
        let expected = if inside { Verdict::Dropped } else { Verdict::Untouched };
        assert_eq!(end(&table, to), expected, "{to}");
    }
}

/// A chain that balances over `endpoints`, with elements for the first `filled` of them.
fn balancing(endpoints: usize, filled: usize) -> Table {
    let map = rules::endpoint_map(&name("map"), nft::Family::Ipv4, false);
    let chains = table(&[("base", EXPRS.balance(false, &map.name, endpoints))]);
    let mut table = hook(chains, "base", ChainKind::Nat, HookPoint::Prerouting, -100);
    for i in 0..filled {
        let key = rules::frontend_key(None, Protocol::Tcp, 80).field(&(i as u32).to_ne_bytes());
        table.element(&map.name, Element::map(key, Data::Value(rules::target_value(target(i)))));
    }
    table.sets.insert(map.name.clone(), map);
    table.normalize();
    table
}

fn target(i: usize) -> Target {
    Target { ip: [10, 244, (i / 250) as u8, (i % 250) as u8].into(), port: 8080 }
}

fn balanced(table: &Table) -> Trace {
    eval(table, Family::V4, &packet("10.9.9.9:80"), &Host::default())
}

#[test]
fn every_random_number_is_evaluated() {
    for endpoints in [1, 2, 3, 5, 64, 513, 1000] {
        let trace = balanced(&balancing(endpoints, endpoints));
        let to = (0..endpoints).map(target).collect();
        assert_eq!(trace.verdicts, [Verdict::Delivered { to, masqueraded: false }], "{endpoints} endpoints");
        assert!(trace.paths.len() < 8 * endpoints, "{} paths for {endpoints}", trace.paths.len());
    }
}

#[test]
fn an_index_without_an_endpoint_leaves_the_packet_untouched() {
    let trace = balanced(&balancing(2, 1));
    let to = [target(0)].into();
    assert_eq!(trace.verdicts, [Verdict::Delivered { to, masqueraded: false }, Verdict::Untouched]);
    assert_eq!(balanced(&balancing(5, 0)).verdicts, [Verdict::Untouched]);
}

#[test]
fn all_pairs_of_two_random_numbers_are_evaluated() {
    let mut choices = Some(machine::RandomChoices::default());
    let mut seen = 0;
    while let Some(these) = choices {
        let table = forwarded(&[("base", vec![random(2), random(3)])]);
        let host = Host::default();
        let mut machine = Machine::new(&table, &host, PacketState::new(&packet("10.9.9.9:80")), these);
        machine.run(&name("base"));
        seen += 1;
        choices = machine.choices.next();
    }
    assert_eq!(seen, 6);
}

fn random(modulus: u32) -> Rule {
    Rule { exprs: vec![Expr::Random { modulus, to: Register::word(0) }] }
}

#[test]
fn a_rule_with_a_missing_operand_does_not_match() {
    let drop = |expr: Expr| forwarded(&[("base", vec![rules::rule([expr], nft::Verdict::Drop)])]);
    let to = Register::word(0);
    let beyond = Expr::Payload { base: Base::Transport, offset: 2, len: 4, to };
    assert_eq!(end(&drop(beyond), "10.9.9.9:80"), Verdict::Untouched);
    let foreign = Expr::Foreign("quota".into());
    assert_eq!(end(&drop(foreign), "10.9.9.9:80"), Verdict::Untouched);
    let missing = Expr::Lookup { set: name("missing"), key: to };
    assert_eq!(end(&drop(missing), "10.9.9.9:80"), Verdict::Untouched);
    let readable = Expr::Meta(MetaKey::InputName, to);
    assert_eq!(end(&drop(readable), "10.9.9.9:80"), Verdict::Dropped);
}

#[test]
fn a_stored_value_overwrites_the_whole_word() {
    let to = Register::word(0);
    let rule = rules::rule(
        [
            Expr::Immediate(to, vec![0xff; 4]),
            Expr::Meta(MetaKey::Protocol, to),
            Expr::Compare { equal: true, register: to, value: vec![6, 0, 0, 0] },
        ],
        nft::Verdict::Drop,
    );
    assert_eq!(end(&forwarded(&[("base", vec![rule])]), "10.9.9.9:80"), Verdict::Dropped);
}

#[test]
fn a_packet_to_the_node_itself_arrives_again_without_translation() {
    let drop_at_input = |port: u16| {
        let compare = [
            Expr::Payload { base: Base::Transport, offset: 2, len: 2, to: Register::word(0) },
            Expr::Compare { equal: true, register: Register::word(0), value: port.to_be_bytes().to_vec() },
        ];
        rules::rule(compare, nft::Verdict::Drop)
    };
    let value = |v: &[u8]| v.to_vec();
    let dnat = Rule {
        exprs: vec![
            Expr::Immediate(Register::word(0), value(&[10, 1, 1, 1])),
            Expr::Immediate(Register::word(1), value(&99u16.to_be_bytes())),
            Expr::Dnat { family: 2, address: Register::word(0), port: Register::word(1) },
        ],
    };
    let chains = table(&[("in", vec![drop_at_input(80)]), ("nat", vec![dnat])]);
    let chains = hook(chains, "in", ChainKind::Filter, HookPoint::Input, 0);
    let chains = hook(chains, "nat", ChainKind::Nat, HookPoint::Prerouting, -100);
    let host = Host::with_addresses([[10, 0, 0, 1].into()]);
    let own = Packet { input: None, ..packet("10.0.0.1:80") };
    assert_eq!(eval(&chains, Family::V4, &own, &host).verdict(), Some(&Verdict::Dropped));
    let outside = eval(&chains, Family::V4, &packet("10.0.0.1:80"), &host);
    let to = [Target { ip: [10, 1, 1, 1].into(), port: 99 }].into();
    assert_eq!(outside.verdict(), Some(&Verdict::Delivered { to, masqueraded: false }));
}

#[test]
fn packets_of_the_other_family_are_untouched() {
    let everything = forwarded(&[("base", vec![is(nft::Verdict::Drop)])]);
    let trace = eval(&everything, Family::V6, &packet("10.9.9.9:80"), &Host::default());
    assert_eq!(trace.verdict(), Some(&Verdict::Untouched));
}

#[test]
fn the_comment_of_an_element_is_read() {
    let element = Element::map(Key::new(), Data::Value(Value::new())).comment("default/web:http");
    assert_eq!(machine::comment(&element).as_deref(), Some("default/web:http"));
    let malformed = Element { userdata: Some([0u8, 200, 1].as_slice().into()), ..element };
    assert_eq!(machine::comment(&malformed), None);
}
