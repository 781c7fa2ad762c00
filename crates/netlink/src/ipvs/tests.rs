//! What the kernel would write is read, field by field; garbage is an error and never a panic. Bytes from a real one
//! are compared in `tests/kernel`, where there is IPVS.

use super::*;
use crate::message::attrs;
use proptest::prelude::*;

/// As `ip_vs_genl_fill_service` does.
fn encode_service(b: &mut Buffer, service: &VirtualServer) {
    b.nest(SERVICE, |b| {
        service.encode_key(b);
        b.attr_str(SERVICE_SCHEDULER, &service.scheduler);
        b.attr(SERVICE_FLAGS, &[service.flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat());
        b.attr_u32(SERVICE_TIMEOUT, service.timeout);
        match service.family {
            IPV4 => b.attr_be32(SERVICE_NETMASK, service.netmask),
            _ => b.attr_u32(SERVICE_NETMASK, service.netmask),
        }
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

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { IPV4 } else { IPV6 }
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

proptest! {
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
    service.encode_key(&mut b);
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
    VirtualServer { fwmark: 7, ..service }.encode_key(&mut b);
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
