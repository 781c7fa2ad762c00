//! What `ipvsadm` made is listed and removed.

use crate::namespace::{alone, run};
use portway_netlink::ipvs::{self, Forwarding, PERSISTENT, RealServer, VirtualServer};

/// `IP_VS_SVC_F_HASHED`: the kernel's own mark on every virtual server that is in its table.
const HASHED: u32 = 2;

#[test]
fn a_kernel_without_ipvs_has_no_such_family() {
    alone(|| {
        // Asking may load it: so ask first.
        let found = ipvs::open().unwrap().is_some();
        assert_eq!(found, ipvs::is_loaded());
    });
}

fn service(protocol: u8, address: &str, port: u16, scheduler: &str) -> VirtualServer {
    let v6 = address.contains(':');
    VirtualServer {
        family: if v6 { 10 } else { 2 },
        protocol,
        address: address.parse().unwrap(),
        port,
        fwmark: 0,
        scheduler: scheduler.into(),
        flags: HASHED,
        timeout: 0,
        netmask: if v6 { 128 } else { u32::MAX },
    }
}

fn server(address: &str, port: u16, weight: u32, forwarding: Forwarding) -> RealServer {
    let address = address.parse().unwrap();
    RealServer { address, port, weight, forwarding, active: 0, inactive: 0, persistent: 0 }
}

#[test]
#[ignore = "needs a kernel with ip_vs, and ipvsadm"]
fn virtual_servers_are_listed_with_what_is_behind_them_and_deleted() {
    alone(|| {
        let mut genl = ipvs::open().unwrap().expect("a kernel with ip_vs");
        assert_eq!(ipvs::services(&mut genl).unwrap(), []);
        // Before it has an address, the namespace takes every real server's for a broadcast.
        run("ip", "link set lo up");
        run("ipvsadm", "-A -t 10.96.0.1:443 -s rr");
        run("ipvsadm", "-A -u 10.96.0.10:53 -s rr -p 600 -M 255.255.255.0");
        run("ipvsadm", "-A -t [fd96::1]:80 -s wrr -p 300 -M 64");
        run("ipvsadm", "-A -f 17 -s rr");
        run("ipvsadm", "-a -t 10.96.0.1:443 -r 10.244.1.2:6443 -m -w 3");
        run("ipvsadm", "-a -t 10.96.0.1:443 -r 10.244.1.3:443 -g -w 0");
        run("ipvsadm", "-a -t [fd96::1]:80 -r [fd10::7]:8080 -m");
        let plain = service(6, "10.96.0.1", 443, "rr");
        let sticky = VirtualServer {
            flags: HASHED | PERSISTENT,
            timeout: 600,
            netmask: 0xffff_ff00,
            ..service(17, "10.96.0.10", 53, "rr")
        };
        let six = VirtualServer {
            flags: HASHED | PERSISTENT,
            timeout: 300,
            netmask: 64,
            ..service(6, "fd96::1", 80, "wrr")
        };
        let marked = VirtualServer { fwmark: 17, ..service(0, "0.0.0.0", 0, "rr") };
        let mut listed = ipvs::services(&mut genl).unwrap();
        listed.sort_by_key(|s| (s.fwmark, s.family, s.address));
        assert_eq!(listed, [plain.clone(), sticky.clone(), six.clone(), marked.clone()]);

        let mut behind = ipvs::servers(&mut genl, &plain).unwrap();
        behind.sort_by_key(|s| s.address);
        let nat = server("10.244.1.2", 6443, 3, Forwarding::Masquerade);
        assert_eq!(behind, [nat, server("10.244.1.3", 443, 0, Forwarding::Route)]);
        let behind_six = ipvs::servers(&mut genl, &six).unwrap();
        assert_eq!(behind_six, [server("fd10::7", 8080, 1, Forwarding::Masquerade)]);
        assert_eq!(ipvs::servers(&mut genl, &marked).unwrap(), []);

        for service in [&plain, &six, &marked] {
            assert!(ipvs::delete_service(&mut genl, service).unwrap(), "{service}");
            assert!(!ipvs::delete_service(&mut genl, service).unwrap(), "{service} is gone");
        }
        assert_eq!(ipvs::servers(&mut genl, &plain).unwrap(), [], "nothing is behind what is not there");
        assert_eq!(ipvs::services(&mut genl).unwrap(), [sticky]);
    });
}
