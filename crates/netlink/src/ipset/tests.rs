//! Encoded sets and members decode to equal values; malformed bytes are errors and never a panic.

use super::member::decode_members;
use super::set::decode_revisions;
use super::*;
use crate::message::{NLMSG_ERROR, attrs, messages};
use proptest::prelude::*;
use std::io;

fn list(all: &[Member]) -> Buffer {
    let mut b = Buffer::default();
    b.attr_str(IPSET_ATTR_SETNAME, "set");
    b.nest(IPSET_ATTR_ADT, |b| all.iter().for_each(|m| m.encode(1, b)));
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

/// The set as the kernel lists it: with the numbers of references and members.
fn listed(new: &NewSet) -> SetInfo {
    let mut b = Buffer::default();
    new.encode(1, &mut b);
    let data = attrs(b.bytes()).find(IPSET_ATTR_DATA).unwrap().value.to_vec();
    let mut b = Buffer::default();
    b.attr_str(IPSET_ATTR_SETNAME, &new.name);
    new.encode_type(&mut b);
    b.nest(IPSET_ATTR_DATA, |b| {
        b.raw(&data);
        b.attr_be32(IPSET_ATTR_REFERENCES, 3);
        b.attr_be32(IPSET_ATTR_ELEMENTS, 5);
    });
    SetInfo::decode(attrs(b.bytes())).unwrap()
}

proptest! {
    #[test]
    fn members_decode_to_equal_values(all in prop::collection::vec(member(), 0..20)) {
        let mut decoded = Vec::new();
        decode_members(attrs(list(&all).bytes()), &mut decoded).unwrap();
        prop_assert_eq!(decoded, all);
    }

    #[test]
    fn a_set_fits_the_definition_it_was_created_with(new in new_set()) {
        let info = listed(&new);
        prop_assert_eq!((&info.name, info.kind.as_str()), (&new.name, new.kind.name()));
        prop_assert_eq!((info.references, info.elements), (3, 5));
        prop_assert!(info.fits(&new), "{:?}", info);
        let marked = NewSet { marks: !new.marks, ..new.clone() };
        prop_assert!(!info.fits(&marked));
        let fits_other_family = info.fits(&NewSet { v6: !new.v6, ..new.clone() });
        prop_assert_eq!(fits_other_family, new.kind == SetKind::Port);
        let counting = SetInfo { options: info.options | IPSET_FLAG_WITH_COUNTERS, ..info.clone() };
        prop_assert!(counting.fits(&new), "counters are allowed");
        let expiring = SetInfo { timeout: Some(0), ..info.clone() };
        prop_assert!(!expiring.fits(&new), "a timeout is not allowed");
        if let Some(fewer) = new.max_elements.checked_sub(1).filter(|_| new.kind != SetKind::Port) {
            let small = SetInfo { max_elements: Some(fewer), ..info };
            prop_assert!(!small.fits(&new));
        }
    }

    #[test]
    fn random_bytes_cause_no_panic(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = SetInfo::decode(attrs(&garbage));
        let _ = decode_members(attrs(&garbage), &mut Vec::new());
        let _ = decode_versions(attrs(&garbage));
        let _ = decode_revisions(attrs(&garbage));
        for m in messages(&garbage).flatten() {
            let _ = refused_line(&m);
        }
        let _ = refused_line(&Message { kind: NLMSG_ERROR, flags: 0, seq: 0, port: 0, body: &garbage });
    }

    #[test]
    fn truncated_lists_cause_no_panic(all in prop::collection::vec(member(), 1..5), cut: prop::sample::Index) {
        let b = list(&all);
        let cut = &b.bytes()[..cut.index(b.len())];
        let _ = SetInfo::decode(attrs(cut));
        let _ = decode_members(attrs(cut), &mut Vec::new());
    }
}

#[test]
fn a_missing_number_of_members_decodes_as_zero() {
    let mut b = Buffer::default();
    b.attr_str(IPSET_ATTR_SETNAME, "KUBE-CLUSTER-IP");
    b.attr_str(IPSET_ATTR_TYPENAME, "hash:ip,port");
    b.attr_u8(IPSET_ATTR_FAMILY, libc::AF_INET6 as u8);
    b.nest(IPSET_ATTR_DATA, |b| b.attr_be32(IPSET_ATTR_REFERENCES, 3));
    let info = SetInfo::decode(attrs(b.bytes())).unwrap();
    assert_eq!((info.name.as_str(), info.kind.as_str()), ("KUBE-CLUSTER-IP", "hash:ip,port"));
    assert_eq!((info.family, info.references, info.elements), (libc::AF_INET6 as u8, 3, 0));
}

#[test]
fn members_are_printed_as_ipset_saves_them() {
    let printed = |member: Member| member.to_string();
    let ip = "10.0.0.1".parse().ok();
    assert_eq!(printed(Member { ip, ..Member::default() }), "10.0.0.1");
    assert_eq!(printed(Member { port: Some(30080), ..Member::default() }), "30080");
    let net = Member {
        ip: "fd00::1".parse().ok(),
        port: Some(53),
        protocol: Some(libc::IPPROTO_UDP as u8),
        ip2: "fd01::".parse().ok(),
        cidr2: Some(64),
        mark: Some((0x4000, 0x4000)),
    };
    assert_eq!(printed(net), "fd00::1,udp:53,fd01::/64 skbmark 0x4000/0x4000");
}

#[test]
fn the_refused_line_is_read_from_the_request_in_the_refusal() {
    let refusal = |line: u32| {
        let mut b = Buffer::default();
        b.raw(&(-IPSET_ERR_HASH_FULL).to_ne_bytes());
        b.message(IPSET_CMD_ADD, 0, 1, |b| {
            begin(b, NEWEST_VERSION);
            b.attr_u32(IPSET_ATTR_LINENO, line);
        });
        b.bytes().to_vec()
    };
    let line = |body: &[u8]| refused_line(&Message { kind: NLMSG_ERROR, flags: 0, seq: 1, port: 0, body });
    assert_eq!(line(&refusal(7)), Some(7));
    assert_eq!(line(&refusal(0)), None, "the kernel did not write a line number");
    assert_eq!(line(&[0; 20]), None, "the refusal does not contain the request");
}

#[test]
fn an_address_of_the_wrong_length_is_an_error() {
    let mut b = Buffer::default();
    b.nest(IPSET_ATTR_IP, |b| b.attr(IPSET_ATTR_IPADDR_IPV6, &[0; 4]));
    assert_eq!(Member::decode(attrs(b.bytes())), Err(DecodeError::Truncated("member's address")));
}

#[test]
fn a_kernel_reports_one_version_or_a_range() {
    let mut b = Buffer::default();
    b.attr_u8(IPSET_ATTR_PROTOCOL, 6);
    assert_eq!(decode_versions(attrs(b.bytes())), Ok((6, 6)));
    b.attr_u8(IPSET_ATTR_PROTOCOL_MIN, 5);
    assert_eq!(decode_versions(attrs(b.bytes())), Ok((5, 6)));
    b.attr_u8(IPSET_ATTR_REVISION, 7);
    assert_eq!(decode_revisions(attrs(b.bytes())), Ok((5, 7)));
}

#[test]
fn a_missing_subsystem_is_distinguished_from_a_refusal() {
    let refused = |errno| Error::Refused {
        operation: "list sets".into(),
        source: io::Error::from_raw_os_error(errno),
        detail: None,
    };
    assert!(is_absent(&refused(libc::EINVAL)));
    assert!(!is_absent(&refused(libc::EPERM)));
    assert!(explain(refused(IPSET_ERR_BUSY)).to_string().contains("a rule or another set uses the set"));
}
