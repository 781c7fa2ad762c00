//! What is written is what is read, as far as one can tell without a kernel; garbage is an error and never a panic.

use super::member::decode_members;
use super::set::decode_revisions;
use super::wire::{DATA, FAMILY, LINE, MEMBERS, REVISION, SET_NAME, TYPE_NAME};
use super::*;
use crate::message::{attrs, messages};
use proptest::prelude::*;
use std::io;

fn list(all: &[Member]) -> Buffer {
    let mut b = Buffer::default();
    b.attr_str(SET_NAME, "set");
    b.nest(MEMBERS, |b| all.iter().for_each(|m| m.encode(1, b)));
    b
}

prop_compose! {
    fn member()(
        ip: Option<std::net::IpAddr>,
        port: Option<u16>,
        protocol: Option<u8>,
        ip2: Option<std::net::IpAddr>,
        cidr2: Option<u8>,
        mark: Option<(u32, u32)>,
    ) -> Member {
        Member { ip, port, protocol, ip2, cidr2, mark }
    }
}

fn kind() -> impl Strategy<Value = SetKind> {
    use SetKind::{Ip, IpPort, IpPortIp, IpPortNet, Port};
    prop::sample::select(vec![Ip, IpPort, IpPortIp, IpPortNet, Port])
}

prop_compose! {
    fn new_set()(name in "[A-Z-]{1,31}", kind in kind(), v6: bool, marks: bool, max_elements: u32) -> NewSet {
        NewSet { name, kind, v6, marks, max_elements }
    }
}

/// A set as the kernel lists it: with what it counted behind what it was made of. References always come.
fn listed(new: &NewSet) -> SetInfo {
    let mut b = Buffer::default();
    new.encode(1, &mut b);
    let data = attrs(b.bytes()).find(DATA).unwrap().value.to_vec();
    let mut b = Buffer::default();
    b.attr_str(SET_NAME, &new.name);
    new.encode_type(&mut b);
    b.nest(DATA, |b| {
        b.raw(&data);
        b.attr_be32(25, 3);
        b.attr_be32(24, 5);
    });
    SetInfo::decode(attrs(b.bytes())).unwrap()
}

proptest! {
    #[test]
    fn members_read_back(all in prop::collection::vec(member(), 0..20)) {
        let mut read = Vec::new();
        decode_members(attrs(list(&all).bytes()), &mut read).unwrap();
        prop_assert_eq!(read, all);
    }

    #[test]
    fn a_set_fits_what_it_was_made_of(new in new_set()) {
        let info = listed(&new);
        prop_assert_eq!((&info.name, info.kind.as_str()), (&new.name, new.kind.name()));
        prop_assert_eq!((info.references, info.elements), (3, 5));
        prop_assert!(info.fits(&new), "{:?}", info);
        let marked = NewSet { marks: !new.marks, ..new.clone() };
        prop_assert!(!info.fits(&marked));
        let fits_other_family = info.fits(&NewSet { v6: !new.v6, ..new.clone() });
        prop_assert_eq!(fits_other_family, new.kind == SetKind::Port);
        let counting = SetInfo { options: info.options | 1 << 3, ..info.clone() };
        prop_assert!(counting.fits(&new), "counting does no harm");
        let fleeting = SetInfo { timeout: Some(0), ..info.clone() };
        prop_assert!(!fleeting.fits(&new), "its members may vanish");
        if let Some(fewer) = new.max_elements.checked_sub(1).filter(|_| new.kind != SetKind::Port) {
            let small = SetInfo { max_elements: Some(fewer), ..info };
            prop_assert!(!small.fits(&new));
        }
    }

    #[test]
    fn noise_is_no_panic(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = SetInfo::decode(attrs(&garbage));
        let _ = decode_members(attrs(&garbage), &mut Vec::new());
        let _ = decode_versions(attrs(&garbage));
        let _ = decode_revisions(attrs(&garbage));
        for m in messages(&garbage).flatten() {
            let _ = wire::refused_line(&m);
        }
        let _ = wire::refused_line(&Message { kind: 2, flags: 0, seq: 0, port: 0, body: &garbage });
    }

    #[test]
    fn what_is_cut_short_is_no_panic(all in prop::collection::vec(member(), 1..5), cut: prop::sample::Index) {
        let b = list(&all);
        let cut = &b.bytes()[..cut.index(b.len())];
        let _ = SetInfo::decode(attrs(cut));
        let _ = decode_members(attrs(cut), &mut Vec::new());
    }
}

#[test]
fn an_old_kernel_does_not_count() {
    let mut b = Buffer::default();
    b.attr_str(SET_NAME, "KUBE-CLUSTER-IP");
    b.attr_str(TYPE_NAME, "hash:ip,port");
    b.attr_u8(FAMILY, 10);
    b.nest(DATA, |b| b.attr_be32(25, 3));
    let info = SetInfo::decode(attrs(b.bytes())).unwrap();
    assert_eq!((info.name.as_str(), info.kind.as_str()), ("KUBE-CLUSTER-IP", "hash:ip,port"));
    assert_eq!((info.family, info.references, info.elements), (10, 3, 0));
}

#[test]
fn members_are_told_as_ipset_writes_them() {
    let told = |member: Member| member.to_string();
    let ip = "10.0.0.1".parse().ok();
    assert_eq!(told(Member { ip, ..Member::default() }), "10.0.0.1");
    assert_eq!(told(Member { port: Some(30080), ..Member::default() }), "30080");
    let net = Member {
        ip: "fd00::1".parse().ok(),
        port: Some(53),
        protocol: Some(17),
        ip2: "fd01::".parse().ok(),
        cidr2: Some(64),
        mark: Some((0x4000, 0x4000)),
    };
    assert_eq!(told(net), "fd00::1,udp:53,fd01::/64 skbmark 0x4000/0x4000");
}

#[test]
fn the_line_of_a_refusal_is_read_out_of_the_request_in_it() {
    let refusal = |line: u32| {
        let mut b = Buffer::default();
        b.raw(&(-wire::HASH_FULL).to_ne_bytes());
        b.message(wire::CMD_ADD, 0, 1, |b| {
            begin(b, NEWEST);
            b.attr_u32(LINE, line);
        });
        b.bytes().to_vec()
    };
    let line = |body: &[u8]| wire::refused_line(&Message { kind: 2, flags: 0, seq: 1, port: 0, body });
    assert_eq!(line(&refusal(7)), Some(7));
    assert_eq!(line(&refusal(0)), None, "it is the request as we sent it");
    assert_eq!(line(&[0; 20]), None, "the request is not in it");
}

#[test]
fn an_address_of_an_odd_length_is_an_error() {
    let mut b = Buffer::default();
    b.nest(1, |b| b.attr(2, &[0; 4]));
    assert_eq!(Member::decode(attrs(b.bytes())), Err(Malformed::Short("member's address")));
}

#[test]
fn kernels_of_one_version_and_of_several_are_understood() {
    let mut b = Buffer::default();
    b.attr_u8(PROTOCOL, 6);
    assert_eq!(decode_versions(attrs(b.bytes())), Ok((6, 6)));
    b.attr_u8(PROTOCOL_MIN, 5);
    assert_eq!(decode_versions(attrs(b.bytes())), Ok((5, 6)));
    b.attr_u8(REVISION, 7);
    assert_eq!(decode_revisions(attrs(b.bytes())), Ok((5, 7)));
}

#[test]
fn a_kernel_without_sets_is_told_from_one_that_refuses() {
    let refused = |errno| Error::Refused {
        operation: "ask".into(),
        source: io::Error::from_raw_os_error(errno),
        detail: None,
    };
    assert!(is_absent(&refused(libc::EINVAL)));
    assert!(!is_absent(&refused(libc::EPERM)));
    assert!(explain(refused(4100)).to_string().contains("a rule or another set uses it"));
}
