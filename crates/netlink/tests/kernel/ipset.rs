//! Sets created with the `ipset` command are listed, flushed and destroyed.

use crate::namespace::{in_new_namespace, run};
use portway_netlink::ipset::{Ipset, Member, SetInfo};
use std::collections::BTreeSet;

const AF_UNSPEC: u8 = libc::AF_UNSPEC as u8;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
const TCP: u8 = libc::IPPROTO_TCP as u8;
const UDP: u8 = libc::IPPROTO_UDP as u8;
const SCTP: u8 = libc::IPPROTO_SCTP as u8;

fn open() -> Ipset {
    Ipset::open().unwrap().expect("a kernel with sets")
}

fn info(name: &str, kind: &str, family: u8, references: u32, elements: u32) -> SetInfo {
    let port = kind == "bitmap:port";
    SetInfo {
        name: name.into(),
        kind: kind.into(),
        family,
        references,
        elements,
        max_elements: (!port).then_some(65536),
        ports: port.then_some((0, 65535)),
        ..SetInfo::default()
    }
}

#[test]
fn sets_are_listed_without_their_members() {
    in_new_namespace(|| {
        let mut ipset = open();
        assert_eq!(ipset.names().unwrap(), []);
        run("ipset", "create KUBE-CLUSTER-IP hash:ip,port");
        run("ipset", "create KUBE-6-CLUSTER-IP hash:ip,port family inet6");
        run("ipset", "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535");
        run("ipset", "add KUBE-CLUSTER-IP 10.96.0.1,tcp:443");
        run("ipset", "add KUBE-CLUSTER-IP 10.96.0.10,udp:53");
        run("iptables-legacy", "-w -A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst");
        let mut sets = ipset.names().unwrap();
        sets.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(
            sets,
            [
                info("KUBE-6-CLUSTER-IP", "hash:ip,port", AF_INET6, 0, 0),
                info("KUBE-CLUSTER-IP", "hash:ip,port", AF_INET, 1, 2),
                info("KUBE-NODE-PORT-TCP", "bitmap:port", AF_UNSPEC, 0, 0),
            ]
        );
    });
}

#[test]
fn members_of_each_type_are_listed() {
    in_new_namespace(|| {
        let mut ipset = open();
        let member = |ip: &str, port, protocol| Member {
            ip: (!ip.is_empty()).then(|| ip.parse().unwrap()),
            port,
            protocol,
            ..Member::default()
        };
        let second = |member, ip: &str, cidr2| Member { ip2: ip.parse().ok(), cidr2, ..member };
        let tcp = member("10.0.0.1", Some(80), Some(TCP));
        let cases = [
            ("hash:ip", "10.0.0.1", member("10.0.0.1", None, None)),
            ("hash:ip family inet6", "fd00::1", member("fd00::1", None, None)),
            ("hash:ip,port", "10.0.0.1,udp:53", member("10.0.0.1", Some(53), Some(UDP))),
            (
                "hash:ip,port family inet6 timeout 60",
                "fd00::1,sctp:7",
                member("fd00::1", Some(7), Some(SCTP)),
            ),
            ("hash:ip,port,ip comment", "10.0.0.1,tcp:80,10.0.0.2", second(tcp, "10.0.0.2", None)),
            ("hash:ip,port,net", "10.0.0.1,tcp:80,10.9.8.7/16", second(tcp, "10.9.0.0", Some(16))),
            ("hash:ip,port,net", "10.0.0.1,tcp:80,10.9.8.7", second(tcp, "10.9.8.7", Some(32))),
            ("hash:ip,port skbinfo", "10.0.0.1,tcp:80", tcp),
            (
                "hash:ip,port skbinfo",
                "10.0.0.1,tcp:80 skbmark 0x4000/0xc000 skbprio 1:10",
                Member { mark: Some((0x4000, 0xc000)), ..tcp },
            ),
            ("bitmap:port range 0-65535", "30080", member("", Some(30080), None)),
        ];
        for (n, (kind, text, member)) in cases.into_iter().enumerate() {
            run("ipset", &format!("create set{n} {kind}"));
            assert_eq!(ipset.members(&format!("set{n}")).unwrap(), []);
            run("ipset", &format!("add set{n} {text}"));
            assert_eq!(ipset.members(&format!("set{n}")).unwrap(), [member], "{kind}");
        }
        assert!(ipset.members("nosuchset").unwrap_err().is_not_found());
    });
}

#[test]
fn a_set_listed_in_many_messages_is_read_completely() {
    in_new_namespace(|| {
        run("ipset", "create many hash:ip,port");
        for ports in ["1-20000", "30000-40000"] {
            run("ipset", &format!("add many 10.0.0.1,tcp:{ports}"));
        }
        let mut ipset = open();
        let all = ipset.members("many").unwrap();
        assert_eq!(all.len(), 30001, "every member is listed once");
        let ports: BTreeSet<u16> = all.iter().filter_map(|m| m.port).collect();
        assert_eq!(ports, (1..=20000).chain(30000..=40000).collect());
        assert_eq!(ipset.names().unwrap(), [info("many", "hash:ip,port", AF_INET, 0, 30001)]);
    });
}

#[test]
fn only_the_named_set_is_flushed_or_destroyed() {
    in_new_namespace(|| {
        let mut ipset = open();
        for set in ["first", "second"] {
            run("ipset", &format!("create {set} hash:ip"));
            run("ipset", &format!("add {set} 10.0.0.1"));
        }
        assert!(ipset.flush("first").unwrap());
        assert_eq!(ipset.members("first").unwrap(), []);
        assert_eq!(ipset.members("second").unwrap().len(), 1);
        assert!(ipset.destroy("first").unwrap());
        assert!(!ipset.destroy("first").unwrap(), "it was destroyed");
        assert!(!ipset.flush("first").unwrap());
        assert!(!ipset.destroy("").unwrap(), "an empty name does not mean all sets");
        assert_eq!(ipset.names().unwrap(), [info("second", "hash:ip", AF_INET, 0, 1)]);
    });
}

#[test]
fn a_set_in_use_is_not_destroyed_and_the_error_gives_the_reason() {
    in_new_namespace(|| {
        run("ipset", "create used hash:ip");
        run("iptables-legacy", "-w -A INPUT -m set --match-set used src");
        let mut ipset = open();
        let error = ipset.destroy("used").unwrap_err().to_string();
        assert!(
            error.contains("destroy set used") && error.contains("a rule or another set uses the set"),
            "{error}"
        );
        run("iptables-legacy", "-w -F INPUT");
        assert!(ipset.destroy("used").unwrap());
    });
}
