//! The `ipset` command lists the sets and members that this crate creates.

use crate::namespace::{in_new_namespace, run};
use portway_netlink::ipset::{Ipset, Member, NewSet, SetChange, SetKind};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// From `linux/netfilter/ipset/ip_set_hash.h`.
const IPSET_ERR_HASH_FULL: i32 = 4352;

const PROTOCOLS: [u8; 3] = [libc::IPPROTO_TCP as u8, libc::IPPROTO_UDP as u8, libc::IPPROTO_SCTP as u8];

const KINDS: [SetKind; 5] =
    [SetKind::Ip, SetKind::IpPort, SetKind::IpPortIp, SetKind::IpPortNet, SetKind::Port];

fn open() -> Ipset {
    Ipset::open().unwrap().expect("a kernel with sets")
}

fn new(name: &str, kind: SetKind, v6: bool) -> NewSet {
    NewSet { name: name.into(), kind, v6, marks: false, max_elements: 65536 }
}

/// The `n`th member of a set of this kind.
fn member(kind: SetKind, v6: bool, n: u16) -> Member {
    let ip = |host: u16| match v6 {
        false => IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + u32::from(host))),
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host).into(),
    };
    let net = match v6 {
        false => IpAddr::from(Ipv4Addr::new(172, 16, (n >> 8) as u8, 0)),
        true => Ipv6Addr::new(0xfd01, n, 0, 0, 0, 0, 0, 0).into(),
    };
    let bare = Member::default();
    let port = Member { ip: Some(ip(n)), port: Some(n), protocol: Some(PROTOCOLS[n as usize % 3]), ..bare };
    match kind {
        SetKind::Ip => Member { ip: Some(ip(n)), ..bare },
        SetKind::IpPort => port,
        SetKind::IpPortIp => Member { ip2: Some(ip(n + 1)), ..port },
        SetKind::IpPortNet => Member { ip2: Some(net), cidr2: Some(if v6 { 64 } else { 24 }), ..port },
        SetKind::Port => Member { port: Some(n), ..bare },
    }
}

fn sorted(mut members: Vec<Member>) -> Vec<Member> {
    members.sort();
    members
}

/// The members of a set as `ipset save` prints them.
fn saved(set: &str) -> BTreeSet<String> {
    let prefix = format!("add {set} ");
    run("ipset", &format!("save {set}"))
        .lines()
        .filter_map(|l| l.strip_prefix(&prefix))
        .map(str::to_owned)
        .collect()
}

#[test]
fn sets_of_every_kind_hold_the_added_members_and_ipset_lists_them() {
    in_new_namespace(|| {
        let mut ipset = open();
        for (n, (kind, v6, marks)) in KINDS
            .into_iter()
            .flat_map(|kind| {
                [false, true].into_iter().flat_map(move |v6| [(kind, v6, false), (kind, v6, true)])
            })
            .enumerate()
        {
            let set = NewSet { marks, ..new(&format!("set{n}"), kind, v6) };
            assert!(ipset.create(&set).unwrap(), "{set:?}");
            assert!(!ipset.create(&set).unwrap(), "{set:?} exists");
            let with_mark = |m| Member { mark: marks.then_some((0x4000, 0x4000)), ..m };
            let wanted: Vec<Member> = (1..=5000).map(|n| with_mark(member(kind, v6, n))).collect();
            ipset.add(&set.name, &wanted).unwrap();
            assert_eq!(sorted(ipset.members(&set.name).unwrap()), sorted(wanted.clone()), "{set:?}");
            let printed: BTreeSet<String> = wanted.iter().map(Member::to_string).collect();
            assert_eq!(saved(&set.name), printed, "{set:?}");
            ipset.add(&set.name, &wanted).unwrap();
            let (removed, kept) = wanted.split_at(3000);
            ipset.remove(&set.name, removed).unwrap();
            ipset.remove(&set.name, removed).unwrap();
            assert_eq!(sorted(ipset.members(&set.name).unwrap()), sorted(kept.to_vec()), "{set:?}");
            let info = ipset.names().unwrap().into_iter().find(|info| info.name == set.name).unwrap();
            assert!(info.fits(&set), "{info:?} for {set:?}");
            assert_eq!(info.elements, 2000);
        }
    });
}

#[test]
fn a_set_created_with_ipset_fits_only_with_the_same_options() {
    in_new_namespace(|| {
        let mut ipset = open();
        let set = new("set", SetKind::IpPort, false);
        let port = new("set", SetKind::Port, false);
        let cases = [
            ("hash:ip,port", true, false),
            ("hash:ip,port family inet hashsize 1024 maxelem 65536", true, false),
            ("hash:ip,port maxelem 70000 comment counters", true, false),
            ("hash:ip,port maxelem 65535", false, false),
            ("hash:ip,port family inet6", false, false),
            ("hash:ip,port,ip", false, false),
            ("hash:ip,port skbinfo", false, false),
            ("hash:ip,port timeout 60", false, false),
            ("hash:ip,port forceadd", false, false),
            ("bitmap:port range 0-65535", false, true),
            ("bitmap:port range 1-65535", false, false),
        ];
        for (definition, fits_set, fits_port) in cases {
            run("ipset", &format!("create set {definition}"));
            let info = ipset.names().unwrap().remove(0);
            assert_eq!((info.fits(&set), info.fits(&port)), (fits_set, fits_port), "{definition}");
            assert!(!ipset.create(&set).unwrap(), "another set of this name is not replaced");
            assert!(ipset.destroy("set").unwrap());
        }
    });
}

#[test]
fn an_existing_member_gets_the_new_mark() {
    in_new_namespace(|| {
        let mut ipset = open();
        ipset.create(&NewSet { marks: true, ..new("set", SetKind::IpPort, false) }).unwrap();
        let bare = member(SetKind::IpPort, false, 1);
        for mark in [Some((1, 0xff)), Some((2, 0xff)), None] {
            let wanted = Member { mark, ..bare };
            ipset.add("set", &[wanted]).unwrap();
            assert_eq!(ipset.members("set").unwrap(), [wanted]);
        }
        ipset.remove("set", &[Member { mark: Some((9, 9)), ..bare }]).unwrap();
        assert_eq!(ipset.members("set").unwrap(), [], "the mark does not identify a member");
    });
}

#[test]
fn changes_to_several_sets_share_a_datagram() {
    in_new_namespace(|| {
        let mut ipset = open();
        for name in ["a", "b", "c"] {
            ipset.create(&new(name, SetKind::Ip, false)).unwrap();
        }
        let members: Vec<Member> = (1..=3).map(|n| member(SetKind::Ip, false, n)).collect();
        ipset.add("b", &members).unwrap();
        let before = ipset.sent();
        let changes = [
            SetChange::Add { set: "a", members: &members[..1] },
            SetChange::Remove { set: "b", members: &members[..2] },
            SetChange::Add { set: "c", members: &members },
            SetChange::Add { set: "c", members: &[] },
        ];
        assert!(ipset.apply_all(&changes).unwrap().is_empty());
        assert_eq!(ipset.sent() - before, 3, "one message for each set");
        assert_eq!(ipset.members("a").unwrap(), members[..1]);
        assert_eq!(ipset.members("b").unwrap(), members[2..]);
        assert_eq!(sorted(ipset.members("c").unwrap()), members);
    });
}

#[test]
fn errors_name_set_and_member_and_do_not_stop_other_changes() {
    in_new_namespace(|| {
        let mut ipset = open();
        ipset.create(&new("existing", SetKind::IpPort, false)).unwrap();
        let mut members: Vec<Member> = (1..=600).map(|n| member(SetKind::IpPort, false, n)).collect();
        let six = member(SetKind::IpPort, true, 7);
        members[100] = six;
        members[101] = six;
        members[599] = Member { protocol: Some(libc::IPPROTO_IP as u8), ..members[599] };
        let changes = [
            SetChange::Add { set: "existing", members: &members },
            SetChange::Add { set: "missing", members: &members[..1] },
            SetChange::Remove { set: "missing", members: &members },
        ];
        let failed = ipset.apply_all(&changes).unwrap();
        let errors: Vec<(usize, String)> = failed.iter().map(|f| (f.index, f.error.to_string())).collect();
        let about = |index: usize, words: &[&str]| {
            errors.iter().filter(|(i, text)| *i == index && words.iter().all(|w| text.contains(w))).count()
        };
        assert_eq!(about(0, &["add fd00::7,udp:7 to set existing", "the other family"]), 2, "{errors:#?}");
        assert_eq!(
            about(0, &["add 10.0.2.88,0:600 to set existing", "a transport protocol"]),
            1,
            "{errors:#?}"
        );
        assert_eq!(about(1, &["add 10.0.0.1,udp:1 to set missing"]), 1, "{errors:#?}");
        assert_eq!(about(2, &["remove 256 members from set missing"]), 2, "{errors:#?}");
        assert_eq!(about(2, &["remove 88 members from set missing"]), 1, "{errors:#?}");
        assert_eq!(errors.len(), 7, "{errors:#?}");
        assert!(failed.iter().filter(|f| f.index > 0).all(|f| f.error.is_not_found()));
        assert_eq!(ipset.members("existing").unwrap().len(), 597, "all other members were added");
    });
}

#[test]
fn a_full_set_refuses_new_members_and_accepts_existing_ones() {
    in_new_namespace(|| {
        let mut ipset = open();
        ipset.create(&NewSet { max_elements: 300, ..new("small", SetKind::IpPort, false) }).unwrap();
        ipset.create(&new("large", SetKind::IpPort, false)).unwrap();
        let members: Vec<Member> = (1..=5000).map(|n| member(SetKind::IpPort, false, n)).collect();
        let before = ipset.sent();
        let changes = [
            SetChange::Add { set: "small", members: &members },
            SetChange::Add { set: "large", members: &members },
        ];
        let failed = ipset.apply_all(&changes).unwrap();
        assert_eq!(ipset.sent() - before, 40, "no member is sent again");
        assert!(failed.iter().all(|f| f.index == 0));
        assert_eq!(failed.len(), 19, "every message except the first is refused");
        let text = failed[0].error.to_string();
        assert!(text.contains("to set small") && text.contains("the set is full"), "{text}");
        assert_eq!(failed[0].error.errno(), Some(IPSET_ERR_HASH_FULL));
        let existing = ipset.members("small").unwrap();
        assert_eq!(existing.len(), 300);
        assert_eq!(ipset.members("large").unwrap().len(), 5000);
        ipset.add("small", &existing).unwrap();
        let error = ipset.add("small", &members[4999..]).unwrap_err().to_string();
        assert!(error.contains("add 10.0.19.136,sctp:5000 to set small"), "{error}");
        ipset.remove("small", &existing[..1]).unwrap();
        ipset.add("small", &members[4999..]).unwrap();
    });
}

#[test]
fn invalid_members_and_names_are_refused() {
    in_new_namespace(|| {
        let mut ipset = open();
        for (kind, v6) in [(SetKind::IpPortNet, false), (SetKind::IpPortNet, true), (SetKind::IpPort, false)]
        {
            let set = new(&format!("{}{v6}", kind.name()), kind, v6);
            ipset.create(&set).unwrap();
            let invalid = match kind {
                SetKind::IpPortNet => Member { cidr2: Some(0), ..member(kind, v6, 1) },
                _ => Member { mark: Some((1, 1)), ..member(kind, v6, 1) },
            };
            let error = ipset.add(&set.name, &[invalid]).unwrap_err();
            let expected = if kind == SetKind::IpPortNet {
                "prefix length of a network is invalid"
            } else {
                "without support for marks"
            };
            assert!(error.to_string().contains(expected), "{error}");
        }
        let long = new(&"x".repeat(32), SetKind::Ip, false);
        let error = ipset.create(&long).unwrap_err();
        assert!(error.to_string().contains("create set xxxx"), "{error}");
    });
}

#[test]
fn one_hundred_thousand_members_at_once() {
    in_new_namespace(|| {
        let mut ipset = open();
        ipset.create(&NewSet { max_elements: 1 << 20, ..new("many", SetKind::IpPort, false) }).unwrap();
        let ip = |n: u32| Some(Ipv4Addr::from_bits(0x0a00_0000 + n).into());
        let members: Vec<Member> =
            (0..100_000).map(|n| Member { ip: ip(n), ..member(SetKind::IpPort, false, 80) }).collect();
        let start = Instant::now();
        ipset.add("many", &members).unwrap();
        println!("100,000 members added in {:?}", start.elapsed());
        assert_eq!(ipset.members("many").unwrap().len(), members.len());
    });
}
