//! Messages in the format of the kernel decode to the expected values; malformed bytes are errors and never a panic.
//! `tests/kernel` uses a kernel that has IPVS.

use super::server::*;
use super::*;
use crate::DecodeError;
use crate::genl::Command;
use crate::message::{Buffer, attrs};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// An invalid address family, for messages whose own family is used.
const UNUSED_FAMILY: u8 = 99;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;

/// Writes a virtual server as `ip_vs_genl_fill_service` does.
fn encode_service(b: &mut Buffer, service: &VirtualServer) {
    b.nest(IPVS_CMD_ATTR_SERVICE, |b| {
        service.key().encode(b);
        service.options().encode(service.family, b);
    });
}

/// Writes a real server as `ip_vs_genl_fill_dest` does.
fn encode_server(b: &mut Buffer, server: &RealServer, with_family: bool) {
    let forwarding = match server.forwarding {
        Forwarding::Masquerade => IP_VS_CONN_F_MASQ,
        Forwarding::Local => IP_VS_CONN_F_LOCALNODE,
        Forwarding::Tunnel => IP_VS_CONN_F_TUNNEL,
        Forwarding::Route => IP_VS_CONN_F_DROUTE,
        Forwarding::Bypass => IP_VS_CONN_F_BYPASS,
        Forwarding::Other(code) => code,
    };
    b.nest(IPVS_CMD_ATTR_DEST, |b| {
        b.attr(IPVS_DEST_ATTR_ADDR, &encode_address(server.address));
        b.attr_be16(IPVS_DEST_ATTR_PORT, server.port);
        b.attr_u32(IPVS_DEST_ATTR_FWD_METHOD, forwarding);
        b.attr_u32(IPVS_DEST_ATTR_WEIGHT, server.weight);
        b.attr_u32(IPVS_DEST_ATTR_ACTIVE_CONNS, server.active);
        b.attr_u32(IPVS_DEST_ATTR_INACT_CONNS, server.inactive);
        b.attr_u32(IPVS_DEST_ATTR_PERSIST_CONNS, server.persistent);
        if with_family {
            b.attr_u16(IPVS_DEST_ATTR_ADDR_FAMILY, family(server.address).into());
        }
    });
}

prop_compose! {
    fn service()(
        address: IpAddr,
        (protocol, port, fwmark) in prop_oneof![
            (any::<u8>(), any::<u16>(), Just(0u32)),
            (Just(0u8), Just(0u16), 1..=u32::MAX),
        ],
        scheduler in "[a-z]{1,15}",
        flags: u32,
        timeout: u32,
        netmask: u32,
    ) -> VirtualServer {
        let family = family(address);
        let address = if fwmark == 0 { address } else { unspecified(family).unwrap() };
        VirtualServer { family, protocol, address, port, fwmark, scheduler, flags, timeout, netmask }
    }
}

prop_compose! {
    fn server()(
        address: IpAddr,
        port: u16,
        weight: u32,
        forwarding in (0..8u32).prop_map(Forwarding::from_code),
        active: u32,
        inactive: u32,
        persistent: u32,
    ) -> RealServer {
        RealServer { address, port, weight, forwarding, active, inactive, persistent }
    }
}

fn body(change: &Change<'_>) -> Vec<u8> {
    let mut b = Buffer::default();
    change.fill(&mut b);
    b.bytes().to_vec()
}

proptest! {
    #[test]
    fn virtual_servers_to_add_decode_to_equal_values(service in service()) {
        let (key, options) = (service.key(), service.options());
        for change in [
            Change::AddService { service: key, options },
            Change::SetService { service: key, options },
        ] {
            prop_assert_eq!(change.service(), key);
            prop_assert_eq!(VirtualServer::decode(attrs(&body(&change))), Ok(service.clone()));
        }
    }

    #[test]
    fn real_servers_to_add_decode_to_equal_values(service in service(), server: SocketAddr, weight: u32) {
        let service = service.key();
        let changes = [
            Change::AddServer { service, server, weight },
            Change::SetServer { service, server, weight },
            Change::DeleteServer { service, server },
        ];
        for change in changes {
            let mut key = Buffer::default();
            key.nest(IPVS_CMD_ATTR_SERVICE, |b| service.encode(b));
            let bytes = body(&change);
            let rest = bytes.strip_prefix(key.bytes()).expect("the virtual server comes first");
            // The kernel's listing adds the numbers of connections, which a change does not have.
            let sent = attrs(rest).find(IPVS_CMD_ATTR_DEST).expect("a real server").value;
            let mut listed = Buffer::default();
            listed.nest(IPVS_CMD_ATTR_DEST, |b| {
                b.raw(sent);
                if let Change::DeleteServer { .. } = change {
                    b.attr_u32(IPVS_DEST_ATTR_FWD_METHOD, IP_VS_CONN_F_MASQ);
                    b.attr_u32(IPVS_DEST_ATTR_WEIGHT, weight);
                }
                for count in [IPVS_DEST_ATTR_ACTIVE_CONNS, IPVS_DEST_ATTR_INACT_CONNS, IPVS_DEST_ATTR_PERSIST_CONNS] {
                    b.attr_u32(count, 7);
                }
            });
            let expected = RealServer {
                address: server.ip(),
                port: server.port(),
                weight,
                forwarding: Forwarding::Masquerade,
                active: 7,
                inactive: 7,
                persistent: 7,
            };
            prop_assert_eq!(RealServer::decode(attrs(listed.bytes()), UNUSED_FAMILY), Ok(expected));
        }
    }

    #[test]
    fn timeouts_decode_to_equal_values(tcp: u32, tcp_fin: u32, udp: u32) {
        let timeouts = Timeouts { tcp, tcp_fin, udp };
        let mut b = Buffer::default();
        timeouts.encode(&mut b);
        prop_assert_eq!(Timeouts::decode(attrs(b.bytes())), Ok(timeouts));
    }

    #[test]
    fn virtual_servers_decode_to_equal_values(service in service()) {
        let mut b = Buffer::default();
        encode_service(&mut b, &service);
        prop_assert_eq!(VirtualServer::decode(attrs(b.bytes())), Ok(service));
    }

    #[test]
    fn real_servers_decode_with_and_without_a_family(server in server(), with_family: bool) {
        let mut b = Buffer::default();
        encode_server(&mut b, &server, with_family);
        // The virtual server's family is used only if the real server has none.
        let family = if with_family { UNUSED_FAMILY } else { family(server.address) };
        prop_assert_eq!(RealServer::decode(attrs(b.bytes()), family), Ok(server));
    }

    #[test]
    fn random_bytes_cause_no_panic(garbage in prop::collection::vec(any::<u8>(), 0..200), family: u8) {
        let _ = VirtualServer::decode(attrs(&garbage));
        let _ = RealServer::decode(attrs(&garbage), family);
        let _ = Timeouts::decode(attrs(&garbage));
    }

    #[test]
    fn truncated_messages_cause_no_panic(service in service(), server in server(), cut: prop::sample::Index) {
        let mut b = Buffer::default();
        encode_service(&mut b, &service);
        encode_server(&mut b, &server, true);
        let cut = &b.bytes()[..cut.index(b.len())];
        let _ = VirtualServer::decode(attrs(cut));
        let _ = RealServer::decode(attrs(cut), AF_INET);
    }
}

/// Compares bytes, because a test that only decodes encoded values does not detect a wrong constant.
#[test]
fn a_key_is_encoded_to_the_bytes_the_kernel_expects() {
    let service = VirtualServer {
        family: AF_INET,
        protocol: TCP,
        address: Ipv4Addr::new(10, 96, 0, 1).into(),
        port: 443,
        fwmark: 0,
        scheduler: String::new(),
        flags: 0,
        timeout: 0,
        netmask: 0,
    };
    let mut b = Buffer::default();
    service.key().encode(&mut b);
    let word = |len: u16, kind: u16| [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    let expected = [
        word(6, 1),
        2u16.to_ne_bytes().to_vec(),
        vec![0, 0],
        word(6, 2),
        6u16.to_ne_bytes().to_vec(),
        vec![0, 0],
        word(20, 3),
        vec![10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        word(6, 4),
        vec![1, 187, 0, 0],
    ];
    assert_eq!(b.bytes(), expected.concat());
    let mut b = Buffer::default();
    VirtualServer { fwmark: 7, ..service }.key().encode(&mut b);
    let marked =
        [word(6, 1), 2u16.to_ne_bytes().to_vec(), vec![0, 0], word(8, 5), 7u32.to_ne_bytes().to_vec()];
    assert_eq!(b.bytes(), marked.concat(), "a key with a mark has only family and mark");
}

#[test]
fn an_unknown_family_is_an_error() {
    let mut b = Buffer::default();
    b.nest(IPVS_CMD_ATTR_SERVICE, |b| {
        b.attr_u16(IPVS_SVC_ATTR_AF, 258);
        b.attr_u32(IPVS_SVC_ATTR_FWMARK, 1);
    });
    let unknown = DecodeError::Unknown { field: "address family", value: 258 };
    assert_eq!(VirtualServer::decode(attrs(b.bytes())), Err(unknown));
}

#[test]
fn changes_have_a_description() {
    let service = Key::new(TCP, "10.96.0.1:443".parse().unwrap());
    let server = "10.244.1.2:6443".parse().unwrap();
    let described = |change: Change<'_>| change.describe();
    assert_eq!(described(Change::DeleteService { service }), "delete virtual server tcp 10.96.0.1:443");
    assert_eq!(
        described(Change::SetServer { service, server, weight: 0 }),
        "set the weight of 10.244.1.2:6443 in virtual server tcp 10.96.0.1:443 to 0"
    );
    let six = Key::new(UDP, "[fd96::a]:53".parse().unwrap());
    assert_eq!(
        described(Change::AddServer { service: six, server: "[fd10::1]:53".parse().unwrap(), weight: 1 }),
        "add [fd10::1]:53 to virtual server udp [fd96::a]:53"
    );
}
