//! What the kernel would write is read, field by field; garbage is an error and never a panic. Bytes from a real one
//! are compared in `tests/kernel`, where there is IPVS.

use super::server::*;
use super::*;
use crate::Malformed;
use crate::genl::Command;
use crate::message::{Buffer, attrs};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// As `ip_vs_genl_fill_service` does.
fn encode_service(b: &mut Buffer, service: &VirtualServer) {
    b.nest(SERVICE, |b| {
        service.key().encode(b);
        service.behaviour().encode(service.family, b);
    });
}

/// As `ip_vs_genl_fill_dest` does.
fn encode_server(b: &mut Buffer, server: &RealServer, tell_family: bool) {
    let forwarding = match server.forwarding {
        Forwarding::Masquerade => 0,
        Forwarding::Local => 1,
        Forwarding::Tunnel => 2,
        Forwarding::Route => 3,
        Forwarding::Bypass => 4,
        Forwarding::Other(code) => code,
    };
    b.nest(SERVER, |b| {
        b.attr(SERVER_ADDRESS, &encode_address(server.address));
        b.attr_be16(SERVER_PORT, server.port);
        b.attr_u32(SERVER_FORWARDING, forwarding);
        b.attr_u32(SERVER_WEIGHT, server.weight);
        b.attr_u32(SERVER_ACTIVE, server.active);
        b.attr_u32(SERVER_INACTIVE, server.inactive);
        b.attr_u32(SERVER_PERSISTENT, server.persistent);
        if tell_family {
            b.attr_u16(SERVER_FAMILY, family(server.address).into());
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
    fn services_to_be_made_read_back(service in service()) {
        let (key, behaviour) = (service.key(), service.behaviour());
        for change in [
            Change::AddService { service: key, behaviour },
            Change::SetService { service: key, behaviour },
        ] {
            prop_assert_eq!(change.service(), key);
            prop_assert_eq!(VirtualServer::decode(attrs(&body(&change))), Ok(service.clone()));
        }
    }

    #[test]
    fn servers_to_be_made_read_back(service in service(), server: SocketAddr, weight: u32) {
        let service = service.key();
        let changes = [
            Change::AddServer { service, server, weight },
            Change::SetServer { service, server, weight },
            Change::DeleteServer { service, server },
        ];
        for change in changes {
            let mut key = Buffer::default();
            key.nest(SERVICE, |b| service.encode(b));
            let bytes = body(&change);
            let rest = bytes.strip_prefix(key.bytes()).expect("the virtual server comes first");
            // The kernel adds what it counted, which nobody can ask for.
            let asked = attrs(rest).find(SERVER).expect("a real server").value;
            let mut told = Buffer::default();
            told.nest(SERVER, |b| {
                b.raw(asked);
                if let Change::DeleteServer { .. } = change {
                    b.attr_u32(SERVER_FORWARDING, 0);
                    b.attr_u32(SERVER_WEIGHT, weight);
                }
                for count in [SERVER_ACTIVE, SERVER_INACTIVE, SERVER_PERSISTENT] {
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
            prop_assert_eq!(RealServer::decode(attrs(told.bytes()), 99), Ok(expected));
        }
    }

    #[test]
    fn timeouts_read_back(tcp: u32, tcp_fin: u32, udp: u32) {
        let timeouts = Timeouts { tcp, tcp_fin, udp };
        let mut b = Buffer::default();
        timeouts.encode(&mut b);
        prop_assert_eq!(Timeouts::decode(attrs(b.bytes())), Ok(timeouts));
    }

    #[test]
    fn services_read_back(service in service()) {
        let mut b = Buffer::default();
        encode_service(&mut b, &service);
        prop_assert_eq!(VirtualServer::decode(attrs(b.bytes())), Ok(service));
    }

    #[test]
    fn servers_read_back_whether_or_not_their_family_is_told(server in server(), tell: bool) {
        let mut b = Buffer::default();
        encode_server(&mut b, &server, tell);
        // What the virtual server says counts only for those that do not speak for themselves.
        let family = if tell { 99 } else { family(server.address) };
        prop_assert_eq!(RealServer::decode(attrs(b.bytes()), family), Ok(server));
    }

    #[test]
    fn noise_is_no_panic(garbage in prop::collection::vec(any::<u8>(), 0..200), family: u8) {
        let _ = VirtualServer::decode(attrs(&garbage));
        let _ = RealServer::decode(attrs(&garbage), family);
        let _ = Timeouts::decode(attrs(&garbage));
    }

    #[test]
    fn what_is_cut_short_is_no_panic(service in service(), server in server(), cut: prop::sample::Index) {
        let mut b = Buffer::default();
        encode_service(&mut b, &service);
        encode_server(&mut b, &server, true);
        let cut = &b.bytes()[..cut.index(b.len())];
        let _ = VirtualServer::decode(attrs(cut));
        let _ = RealServer::decode(attrs(cut), IPV4);
    }
}

/// Byte by byte, so that a mistake made both in writing and in reading is still one.
#[test]
fn the_key_is_laid_out_as_the_kernel_wants_it() {
    let service = VirtualServer {
        family: IPV4,
        protocol: 6,
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
    assert_eq!(b.bytes(), marked.concat(), "a mark stands alone");
}

#[test]
fn an_unknown_family_is_an_error() {
    let mut b = Buffer::default();
    b.nest(SERVICE, |b| {
        b.attr_u16(SERVICE_FAMILY, 258);
        b.attr_u32(SERVICE_FWMARK, 1);
    });
    let unknown = Malformed::Unknown { what: "address family", value: 258 };
    assert_eq!(VirtualServer::decode(attrs(b.bytes())), Err(unknown));
}

#[test]
fn changes_are_told_in_words() {
    let service = Key::new(6, "10.96.0.1:443".parse().unwrap());
    let server = "10.244.1.2:6443".parse().unwrap();
    let told = |change: Change<'_>| change.describe();
    assert_eq!(told(Change::DeleteService { service }), "delete virtual server tcp 10.96.0.1:443");
    assert_eq!(
        told(Change::SetServer { service, server, weight: 0 }),
        "give 10.244.1.2:6443 behind virtual server tcp 10.96.0.1:443 weight 0"
    );
    let six = Key::new(17, "[fd96::a]:53".parse().unwrap());
    assert_eq!(
        told(Change::AddServer { service: six, server: "[fd10::1]:53".parse().unwrap(), weight: 1 }),
        "put [fd10::1]:53 behind virtual server udp [fd96::a]:53"
    );
}
