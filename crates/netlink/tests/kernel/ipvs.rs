//! Virtual servers added with `ipvsadm` are listed and deleted, and `ipvsadm` lists those that this crate adds.

use crate::guest::with_module;
use crate::namespace::{in_new_namespace, run};
use portway_netlink::Error;
use portway_netlink::genl::Genl;
use portway_netlink::ipvs::{
    self, Change, Forwarding, Key, PERSISTENT, RealServer, ServiceOptions, Timeouts, VirtualServer,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
const SCTP: u8 = libc::IPPROTO_SCTP as u8;

/// The kernel sets this flag on every virtual server in its table.
const IP_VS_SVC_F_HASHED: u32 = 2;

#[test]
fn the_family_exists_if_ipvs_is_loaded() {
    in_new_namespace(|| {
        // Opening may load the module, so it comes first.
        let found = ipvs::open().unwrap().is_some();
        assert_eq!(found, ipvs::is_loaded());
    });
}

fn service(protocol: u8, address: &str, port: u16, scheduler: &str) -> VirtualServer {
    let v6 = address.contains(':');
    VirtualServer {
        family: if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8,
        protocol,
        address: address.parse().unwrap(),
        port,
        fwmark: 0,
        scheduler: scheduler.into(),
        flags: IP_VS_SVC_F_HASHED,
        timeout: 0,
        netmask: if v6 { 128 } else { u32::MAX },
    }
}

fn server(address: &str, port: u16, weight: u32, forwarding: Forwarding) -> RealServer {
    let address = address.parse().unwrap();
    RealServer { address, port, weight, forwarding, active: 0, inactive: 0, persistent: 0 }
}

#[test]
fn virtual_servers_are_listed_with_their_real_servers_and_deleted() {
    with_module("ip_vs", "ipvs::virtual_servers_are_listed_with_their_real_servers_and_deleted", || {
        let mut genl = ipvs::open().unwrap().expect("a kernel with ip_vs");
        assert_eq!(ipvs::services(&mut genl).unwrap(), []);
        // Without a local address, the kernel takes the address of every real server for a broadcast address.
        run("ip", "link set lo up");
        run("ipvsadm", "-A -t 10.96.0.1:443 -s rr");
        run("ipvsadm", "-A -u 10.96.0.10:53 -s rr -p 600 -M 255.255.255.0");
        run("ipvsadm", "-A -t [fd96::1]:80 -s wrr -p 300 -M 64");
        run("ipvsadm", "-A -f 17 -s rr");
        run("ipvsadm", "-a -t 10.96.0.1:443 -r 10.244.1.2:6443 -m -w 3");
        run("ipvsadm", "-a -t 10.96.0.1:443 -r 10.244.1.3:443 -g -w 0");
        run("ipvsadm", "-a -t [fd96::1]:80 -r [fd10::7]:8080 -m");
        let plain = service(TCP, "10.96.0.1", 443, "rr");
        let persistent = VirtualServer {
            flags: IP_VS_SVC_F_HASHED | PERSISTENT,
            timeout: 600,
            netmask: 0xffff_ff00,
            ..service(UDP, "10.96.0.10", 53, "rr")
        };
        let six = VirtualServer {
            flags: IP_VS_SVC_F_HASHED | PERSISTENT,
            timeout: 300,
            netmask: 64,
            ..service(TCP, "fd96::1", 80, "wrr")
        };
        let marked = VirtualServer { fwmark: 17, ..service(0, "0.0.0.0", 0, "rr") };
        let mut listed = ipvs::services(&mut genl).unwrap();
        listed.sort_by_key(|s| (s.fwmark, s.family, s.address));
        assert_eq!(listed, [plain.clone(), persistent.clone(), six.clone(), marked.clone()]);

        let mut listed = ipvs::servers(&mut genl, &plain.key()).unwrap();
        listed.sort_by_key(|s| s.address);
        let nat = server("10.244.1.2", 6443, 3, Forwarding::Masquerade);
        assert_eq!(listed, [nat, server("10.244.1.3", 443, 0, Forwarding::Route)]);
        let listed_six = ipvs::servers(&mut genl, &six.key()).unwrap();
        assert_eq!(listed_six, [server("fd10::7", 8080, 1, Forwarding::Masquerade)]);
        assert_eq!(ipvs::servers(&mut genl, &marked.key()).unwrap(), []);

        for service in [&plain, &six, &marked] {
            assert!(ipvs::delete_service(&mut genl, &service.key()).unwrap(), "{service}");
            assert!(!ipvs::delete_service(&mut genl, &service.key()).unwrap(), "{service} was deleted");
        }
        assert_eq!(
            ipvs::servers(&mut genl, &plain.key()).unwrap(),
            [],
            "a deleted virtual server has no real servers"
        );
        assert_eq!(ipvs::services(&mut genl).unwrap(), [persistent]);
    });
}

/// Opens IPVS in a namespace with a local address.
fn open_with_lo_up() -> Genl {
    run("ip", "link set lo up");
    ipvs::open().unwrap().expect("a kernel with ip_vs")
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Applies changes that must all succeed.
fn apply(genl: &mut Genl, changes: &[Change<'_>]) {
    let failed = ipvs::apply_all(genl, changes).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

const PLAIN: ServiceOptions<'_> = ServiceOptions { scheduler: "rr", flags: 0, timeout: 0, netmask: u32::MAX };

#[test]
fn ipvsadm_lists_the_servers_that_were_added() {
    with_module("ip_vs", "ipvs::ipvsadm_lists_the_servers_that_were_added", || {
        let mut genl = open_with_lo_up();
        let services = [
            service(TCP, "10.96.0.1", 443, "rr"),
            VirtualServer {
                flags: IP_VS_SVC_F_HASHED | PERSISTENT,
                timeout: 10800,
                netmask: 0xffff_ff00,
                ..service(UDP, "10.96.0.10", 53, "wrr")
            },
            service(SCTP, "10.96.0.11", 7, "sh"),
            service(TCP, "fd96::1", 80, "lc"),
            VirtualServer {
                flags: IP_VS_SVC_F_HASHED | PERSISTENT,
                timeout: 300,
                netmask: 64,
                ..service(UDP, "fd96::2", 53, "rr")
            },
        ];
        for service in &services {
            assert_eq!(ipvs::service(&mut genl, &service.key()).unwrap(), None);
        }
        let add: Vec<_> =
            services.iter().map(|s| Change::AddService { service: s.key(), options: s.options() }).collect();
        apply(&mut genl, &add);
        for service in &services {
            assert_eq!(ipvs::service(&mut genl, &service.key()).unwrap().as_ref(), Some(service));
        }
        assert_eq!(ipvs::services(&mut genl).unwrap().len(), services.len());
        let (four, six) = (services[0].key(), services[3].key());
        apply(
            &mut genl,
            &[
                Change::AddServer { service: four, server: socket("10.244.1.2:6443"), weight: 3 },
                Change::AddServer { service: four, server: socket("10.244.1.3:443"), weight: 1 },
                Change::AddServer { service: four, server: socket("10.244.1.4:443"), weight: 1 },
                Change::SetServer { service: four, server: socket("10.244.1.3:443"), weight: 0 },
                Change::DeleteServer { service: four, server: socket("10.244.1.4:443") },
                Change::AddServer { service: six, server: socket("[fd10::7]:8080"), weight: 65535 },
            ],
        );
        let mut listed = ipvs::servers(&mut genl, &four).unwrap();
        listed.sort_by_key(|s| s.address);
        let nat = |address, port, weight| server(address, port, weight, Forwarding::Masquerade);
        assert_eq!(listed, [nat("10.244.1.2", 6443, 3), nat("10.244.1.3", 443, 0)]);
        assert_eq!(ipvs::servers(&mut genl, &six).unwrap(), [nat("fd10::7", 8080, 65535)]);

        let saved = run("ipvsadm", "-S -n");
        for line in [
            "-A -t 10.96.0.1:443 -s rr",
            "-A -u 10.96.0.10:53 -s wrr -p 10800 -M 255.255.255.0",
            "-A --sctp-service 10.96.0.11:7 -s sh",
            "-A -t [fd96::1]:80 -s lc",
            "-A -u [fd96::2]:53 -s rr -p 300 -M 64",
            "-a -t 10.96.0.1:443 -r 10.244.1.2:6443 -m -w 3",
            "-a -t 10.96.0.1:443 -r 10.244.1.3:443 -m -w 0",
            "-a -t [fd96::1]:80 -r [fd10::7]:8080 -m -w 65535",
        ] {
            assert!(saved.lines().any(|l| l.trim() == line), "{line} is not in\n{saved}");
        }
    });
}

#[test]
fn new_options_of_a_virtual_server_keep_its_real_servers() {
    with_module("ip_vs", "ipvs::new_options_of_a_virtual_server_keep_its_real_servers", || {
        let mut genl = open_with_lo_up();
        let mut wanted = service(TCP, "10.96.0.1", 443, "rr");
        let key = wanted.key();
        let real = socket("10.244.1.2:6443");
        apply(
            &mut genl,
            &[
                Change::AddService { service: key, options: wanted.options() },
                Change::AddServer { service: key, server: real, weight: 1 },
            ],
        );
        wanted.scheduler = "wlc".into();
        wanted.flags = IP_VS_SVC_F_HASHED | PERSISTENT;
        wanted.timeout = 100;
        wanted.netmask = 0xffff_0000;
        apply(&mut genl, &[Change::SetService { service: key, options: wanted.options() }]);
        assert_eq!(ipvs::service(&mut genl, &key).unwrap(), Some(wanted.clone()));
        wanted.flags = IP_VS_SVC_F_HASHED;
        apply(&mut genl, &[Change::SetService { service: key, options: wanted.options() }]);
        assert_eq!(ipvs::services(&mut genl).unwrap(), [wanted]);
        assert_eq!(ipvs::servers(&mut genl, &key).unwrap().len(), 1);
    });
}

#[test]
fn errors_distinguish_existing_and_missing_objects() {
    with_module("ip_vs", "ipvs::errors_distinguish_existing_and_missing_objects", || {
        let mut genl = open_with_lo_up();
        let existing = Key::new(TCP, socket("10.96.0.1:443"));
        let missing = Key::new(TCP, socket("10.96.0.2:443"));
        let server = socket("10.244.1.2:6443");
        let unknown_scheduler = ServiceOptions { scheduler: "nosuch", ..PLAIN };
        let no_prefix = ServiceOptions { netmask: 0, ..PLAIN };
        apply(
            &mut genl,
            &[
                Change::AddService { service: existing, options: PLAIN },
                Change::AddServer { service: existing, server, weight: 1 },
            ],
        );
        let exists = |_: &Change<'_>, e: &Error| e.is_exists();
        let no_service = |_: &Change<'_>, e: &Error| ipvs::is_no_service(e);
        let no_server = |c: &Change<'_>, e: &Error| c.is_no_server(e);
        let no_scheduler = |c: &Change<'_>, e: &Error| c.is_no_scheduler(e);
        let invalid = |_: &Change<'_>, e: &Error| e.errno() == Some(libc::EINVAL);
        let out_of_range = |_: &Change<'_>, e: &Error| e.errno() == Some(libc::ERANGE);
        type Expected<'a> = &'a dyn Fn(&Change<'_>, &Error) -> bool;
        let other = socket("10.244.1.3:80");
        let six = Key::new(TCP, socket("[fd96::1]:80"));
        let cases: [(Change<'_>, Expected<'_>); 14] = [
            (Change::AddService { service: existing, options: PLAIN }, &exists),
            (Change::AddService { service: missing, options: unknown_scheduler }, &no_scheduler),
            (Change::SetService { service: existing, options: unknown_scheduler }, &no_scheduler),
            (Change::SetService { service: missing, options: PLAIN }, &no_service),
            (Change::DeleteService { service: missing }, &no_service),
            (Change::AddServer { service: existing, server, weight: 1 }, &exists),
            (Change::AddServer { service: missing, server, weight: 1 }, &no_service),
            (Change::SetServer { service: existing, server: other, weight: 1 }, &no_server),
            (Change::SetServer { service: missing, server, weight: 1 }, &no_service),
            (Change::DeleteServer { service: existing, server: other }, &no_server),
            (Change::DeleteServer { service: missing, server }, &no_service),
            (Change::AddServer { service: existing, server: socket("[fd10::1]:80"), weight: 1 }, &invalid),
            (Change::AddServer { service: existing, server: other, weight: u32::MAX }, &out_of_range),
            (Change::AddService { service: six, options: no_prefix }, &invalid),
        ];
        let changes = cases.map(|(change, _)| change);
        let failed = ipvs::apply_all(&mut genl, &changes).unwrap();
        for (change, expected) in &cases {
            let error = ipvs::apply(&mut genl, change).unwrap_err();
            assert!(expected(change, &error), "{change:?}: {error}");
        }
        for (index, failed) in failed.iter().enumerate() {
            assert_eq!(failed.index, index);
            println!("{}", failed.error);
            assert!(cases[index].1(&changes[index], &failed.error), "{}", failed.error);
        }
        assert_eq!(failed.len(), cases.len());
        assert_eq!(ipvs::servers(&mut genl, &existing).unwrap().len(), 1);
    });
}

#[test]
fn timeouts_are_set_and_zero_does_not_change_them() {
    with_module("ip_vs", "ipvs::timeouts_are_set_and_zero_does_not_change_them", || {
        let mut genl = open_with_lo_up();
        assert_eq!(ipvs::timeouts(&mut genl).unwrap(), Timeouts { tcp: 900, tcp_fin: 120, udp: 300 });
        ipvs::set_timeouts(&mut genl, &Timeouts { tcp: 1000, tcp_fin: 0, udp: 7 }).unwrap();
        assert_eq!(ipvs::timeouts(&mut genl).unwrap(), Timeouts { tcp: 1000, tcp_fin: 120, udp: 7 });
        assert!(ipvs::set_timeouts(&mut genl, &Timeouts { tcp: u32::MAX, tcp_fin: 0, udp: 0 }).is_err());
        assert_eq!(ipvs::timeouts(&mut genl).unwrap().tcp, 1000);
    });
}

#[test]
fn twenty_two_thousand_changes_at_once_and_one_at_a_time() {
    with_module("ip_vs", "ipvs::twenty_two_thousand_changes_at_once_and_one_at_a_time", || {
        let mut genl = open_with_lo_up();
        let key = |n: u32| Key::new(TCP, SocketAddr::new(Ipv4Addr::from_bits(0x0a60_0000 + n).into(), 80));
        let real = |n: u32| SocketAddr::new(Ipv4Addr::from_bits(0x0af4_0000 + n).into(), 8080);
        let mut changes = Vec::new();
        for n in 1..=2000 {
            let service = key(n);
            changes.push(Change::AddService { service, options: PLAIN });
            changes.extend((0..10).map(|i| Change::AddServer {
                service,
                server: real(n * 10 + i),
                weight: 1,
            }));
        }
        let (start, before) = (Instant::now(), genl.sent());
        apply(&mut genl, &changes);
        println!("{} changes in {:?}", changes.len(), start.elapsed());
        assert_eq!(genl.sent() - before, 22_000);
        let start = Instant::now();
        assert_eq!(ipvs::services(&mut genl).unwrap().len(), 2000);
        assert_eq!(ipvs::servers(&mut genl, &key(2000)).unwrap().len(), 10);
        println!("2,000 services listed in {:?}", start.elapsed());
        let start = Instant::now();
        for n in 0..100 {
            let change = Change::SetServer { service: key(1000), server: real(10_000 + n % 10), weight: n };
            ipvs::apply(&mut genl, &change).unwrap();
        }
        println!("100 changes one at a time in {:?}", start.elapsed());
        // All servers exist, so every change is refused; no answer is lost.
        assert_eq!(ipvs::apply_all(&mut genl, &changes).unwrap().len(), 22_000);
    });
}
