//! Encoded objects decode to equal values, and malformed bytes are errors.

use super::expr::{Base, CtKey, FibOf, MetaKey, Reject};
use super::list::{decode_any, decode_elements};
use super::object::VALUE_VERDICT;
use super::*;
use crate::conntrack;
use crate::message::{Buffer, attrs, messages};
use proptest::prelude::*;
use std::sync::Arc;

fn name() -> impl Strategy<Value = Arc<str>> {
    "[a-z0-9/.-]{1,40}".prop_map(Arc::from)
}

fn bytes(max_len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 1..=max_len)
}

fn register() -> impl Strategy<Value = Register> {
    (0..16u8).prop_map(Register::word)
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Drop),
        Just(Verdict::Accept),
        Just(Verdict::Return),
        name().prop_map(Verdict::Jump),
        name().prop_map(Verdict::Goto),
    ]
}

fn expr() -> impl Strategy<Value = Expr> {
    let meta = || prop::sample::select(vec![MetaKey::Mark, MetaKey::InputName, MetaKey::Protocol]);
    let base = prop::sample::select(vec![Base::Network, Base::Transport]);
    let loads =
        prop_oneof![
            (meta(), register()).prop_map(|(key, to)| Expr::Meta(key, to)),
            (meta(), register()).prop_map(|(key, from)| Expr::MetaSet(key, from)),
            (base, any::<u32>(), any::<u32>(), register())
                .prop_map(|(base, offset, len, to)| Expr::Payload { base, offset, len, to }),
            (register(), bytes(64)).prop_map(|(to, value)| Expr::Immediate(to, value)),
            (prop::sample::select(vec![CtKey::State, CtKey::Status]), register())
                .prop_map(|(key, to)| Expr::Ct(key, to)),
            (prop::sample::select(vec![FibOf::Source, FibOf::Destination]), register())
                .prop_map(|(of, to)| Expr::FibType(of, to)),
            (any::<u32>(), register()).prop_map(|(modulus, to)| Expr::Random { modulus, to }),
        ];
    let matches = prop_oneof![
        (any::<bool>(), register(), bytes(64)).prop_map(|(equal, register, value)| Expr::Compare {
            equal,
            register,
            value
        }),
        (register(), bytes(64), bytes(64)).prop_map(|(register, mask, xor)| Expr::Bitwise {
            register,
            mask,
            xor
        }),
        (name(), register()).prop_map(|(set, key)| Expr::Lookup { set, key }),
        (name(), register(), register()).prop_map(|(set, key, to)| Expr::Map { set, key, to }),
        (name(), register()).prop_map(|(set, key)| Expr::VerdictMap { set, key }),
        (name(), register()).prop_map(|(set, key)| Expr::Update { set, key }),
        verdict().prop_map(Expr::Verdict),
    ];
    let actions = prop_oneof![
        (any::<u8>(), register(), register()).prop_map(|(family, address, port)| Expr::Dnat {
            family,
            address,
            port
        }),
        any::<u32>().prop_map(|flags| Expr::Masquerade { flags }),
        any::<u8>().prop_map(|code| Expr::Reject(Reject::Unreachable(code))),
        Just(Expr::Reject(Reject::TcpReset)),
        "x[a-z]{0,10}".prop_map(Expr::Foreign),
    ];
    prop_oneof![loads, matches, actions]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop::collection::vec(expr(), 0..8).prop_map(|exprs| Rule { exprs })
}

fn chain() -> impl Strategy<Value = Chain> {
    let points = [
        HookPoint::Prerouting,
        HookPoint::Input,
        HookPoint::Forward,
        HookPoint::Output,
        HookPoint::Postrouting,
    ];
    let kind = prop::sample::select(vec![ChainKind::Filter, ChainKind::Nat]);
    let hook = (kind, prop::sample::select(points.to_vec()), any::<i32>())
        .prop_map(|(kind, point, priority)| Hook { kind, point, priority, accept: priority % 2 == 0 });
    (name(), prop::option::of(hook)).prop_map(|(name, hook)| Chain { name, hook })
}

fn set() -> impl Strategy<Value = Set> {
    let value = prop_oneof![Just(None), Just(Some(VALUE_VERDICT)), (0..0xffu32, 1..64u32).prop_map(Some)];
    let fields = prop::collection::vec(1..17u32, 0..5);
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let userdata = prop::collection::vec(any::<u8>(), 0..200);
    (name(), numbers, value, any::<u64>(), fields, userdata).prop_map(
        |(name, (flags, key_type, key_len, size), value, timeout, fields, userdata)| Set {
            name,
            flags,
            key_type,
            key_len,
            value,
            timeout,
            size,
            fields,
            userdata,
        },
    )
}

fn element() -> impl Strategy<Value = Element> {
    let key = || bytes(40).prop_map(|b| Key::copy(&b).unwrap());
    let data = prop_oneof![
        bytes(20).prop_map(|b| Data::Value(Value::copy(&b).unwrap())),
        verdict().prop_map(Data::Verdict),
    ];
    let userdata = prop::option::of(bytes(130).prop_map(Arc::from));
    (key(), prop::option::of(key().prop_map(Box::new)), any::<bool>(), prop::option::of(data), userdata)
        .prop_map(|(key, key_end, interval_end, data, userdata)| Element {
            key,
            key_end,
            interval_end,
            data,
            userdata,
        })
}

/// A datagram with one message for each kind of object.
fn datagram(chain: &Chain, rule: &Rule, set: &Set, elements: &[Element]) -> Vec<u8> {
    let mut b = Buffer::default();
    let header = wire::nfgenmsg(wire::NFPROTO_IPV4, 0);
    b.message(wire::NFT_MSG_NEWCHAIN, 0, 1, |b| {
        b.raw(&header);
        chain.encode("portway", b);
    });
    b.message(wire::NFT_MSG_NEWRULE, 0, 2, |b| {
        b.raw(&header);
        rule.encode("portway", &chain.name, b);
    });
    b.message(wire::NFT_MSG_NEWSET, 0, 3, |b| {
        b.raw(&header);
        set.encode("portway", 1, b);
    });
    b.message(wire::NFT_MSG_NEWSETELEM, 0, 4, |b| {
        b.raw(&header);
        b.attr_str(wire::NFTA_SET_ELEM_LIST_TABLE, "portway");
        b.nest(wire::NFTA_SET_ELEM_LIST_ELEMENTS, |b| elements.iter().for_each(|e| e.encode(b, true)));
    });
    b.message(wire::NFT_MSG_NEWGEN, 0, 5, |b| {
        b.raw(&header);
        b.attr_be32(wire::NFTA_GEN_ID, 7);
    });
    b.bytes().to_vec()
}

/// Passes bytes to every decoder, to see that none panics.
fn decode_with_all(bytes: &[u8]) {
    for message in messages(bytes).flatten() {
        let _ = decode_any(&message);
        let _ = monitor::Change::decode(&message);
        let _ = conntrack::decode(attrs(message.body.get(4..).unwrap_or_default()));
    }
    let _ = conntrack::decode(attrs(bytes));
}

proptest! {
    #[test]
    fn expressions_decode_to_equal_values(expr in expr()) {
        let mut b = Buffer::default();
        expr.encode(&mut b);
        let element = attrs(b.bytes()).next().unwrap();
        prop_assert_eq!(Expr::decode(element), Ok(expr));
    }

    #[test]
    fn rules_decode_to_equal_values(rule in rule(), chain in name()) {
        let mut b = Buffer::default();
        rule.encode("portway", &chain, &mut b);
        prop_assert_eq!(Rule::decode(attrs(b.bytes())), Ok((chain, rule)));
    }

    #[test]
    fn chains_decode_to_equal_values(chain in chain()) {
        let mut b = Buffer::default();
        chain.encode("portway", &mut b);
        prop_assert_eq!(Chain::decode(attrs(b.bytes())), Ok(chain));
    }

    #[test]
    fn sets_decode_to_equal_values(set in set(), id: u32) {
        let mut b = Buffer::default();
        set.encode("portway", id, &mut b);
        prop_assert_eq!(Set::decode(attrs(b.bytes())), Ok(set));
    }

    #[test]
    fn elements_decode_to_equal_values(all in prop::collection::vec(element(), 0..10)) {
        let mut b = Buffer::default();
        b.nest(wire::NFTA_SET_ELEM_LIST_ELEMENTS, |b| all.iter().for_each(|e| e.encode(b, true)));
        let mut decoded = Vec::new();
        decode_elements(attrs(b.bytes()), &mut decoded).unwrap();
        prop_assert_eq!(decoded, all);
    }

    #[test]
    fn an_element_to_delete_is_encoded_as_its_key_only(element in element()) {
        let mut b = Buffer::default();
        element.encode(&mut b, false);
        let bare = Element { data: None, userdata: None, ..element };
        prop_assert_eq!(Element::decode(attrs(b.bytes()).next().unwrap()), Ok(bare));
    }

    #[test]
    fn random_bytes_cause_no_panic(garbage in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_with_all(&garbage);
    }

    #[test]
    fn damaged_messages_cause_no_panic(
        chain in chain(), rule in rule(), set in set(), all in prop::collection::vec(element(), 0..4),
        overwrites in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = datagram(&chain, &rule, &set, &all);
        let decoded: Result<Vec<_>, _> = messages(&whole).map(|m| decode_any(&m?)).collect();
        prop_assert_eq!(decoded.map(|d| d.len()), Ok(5));
        decode_with_all(&whole[..cut.index(whole.len())]);
        let mut damaged = whole;
        for (index, value) in overwrites {
            let index = index.index(damaged.len());
            damaged[index] = value;
        }
        decode_with_all(&damaged);
        // Each message is decoded as every other type, too.
        for message in messages(&damaged).flatten() {
            for kind in 0..20u16 {
                let _ = decode_any(&crate::message::Message { kind: wire::NFNL_SUBSYS_NFTABLES << 8 | kind, ..message });
            }
        }
    }

    #[test]
    fn many_elements_are_split_into_several_messages(count in 0..3000usize, with_comment: bool) {
        let element = |n: usize| {
            let element = Element::key(Key::new().field(&(n as u32).to_be_bytes()));
            if with_comment { element.comment("default/web") } else { element }
        };
        let all: Vec<Element> = (0..count).map(element).collect();
        let mut batch = Batch::new(Family::Ipv4, "portway");
        batch.add_elements("set", &all);
        let mut decoded = Vec::new();
        for message in messages(batch.bytes()) {
            let message = message.unwrap();
            if message.kind == wire::NFT_MSG_NEWSETELEM {
                decode_elements(list::body(&message).unwrap(), &mut decoded).unwrap();
            }
        }
        prop_assert_eq!(decoded, all);
    }
}

#[test]
fn an_unknown_verdict_is_an_error() {
    let mut b = Buffer::default();
    b.nest(wire::NFTA_SET_ELEM_DATA, |b| {
        b.nest(wire::NFTA_DATA_VERDICT, |b| b.attr_be32(wire::NFTA_VERDICT_CODE, 77));
    });
    assert!(Verdict::decode(attrs(b.bytes()).next().unwrap()).is_err());
}

#[test]
fn an_unknown_verdict_of_another_program_does_not_stop_the_listing() {
    let verdict_continue = |b: &mut Buffer| {
        b.nest(wire::NFTA_DATA_VERDICT, |b| b.attr_be32(wire::NFTA_VERDICT_CODE, wire::NFT_CONTINUE as u32));
    };
    let mut b = Buffer::default();
    b.nest(wire::NFTA_LIST_ELEM, |b| {
        b.attr_str(wire::NFTA_EXPR_NAME, "immediate");
        b.nest(wire::NFTA_EXPR_DATA, |b| {
            b.attr_be32(wire::NFTA_IMMEDIATE_DREG, wire::NFT_REG_VERDICT);
            b.nest(wire::NFTA_IMMEDIATE_DATA, verdict_continue);
        });
    });
    assert_eq!(Expr::decode(attrs(b.bytes()).next().unwrap()), Ok(Expr::Foreign("immediate".into())));
    let mut b = Buffer::default();
    b.nest(wire::NFTA_LIST_ELEM, |b| {
        b.nest(wire::NFTA_SET_ELEM_KEY, |b| b.attr(wire::NFTA_DATA_VALUE, &[1, 2, 3, 4]));
        b.nest(wire::NFTA_SET_ELEM_DATA, verdict_continue);
    });
    let element = Element::decode(attrs(b.bytes()).next().unwrap()).unwrap();
    assert_eq!(element, Element::key(Key::new().field(&[1, 2, 3, 4])));
}
