//! Changes to links and addresses are reported, links have aliases, and the addresses of one link are listed.

use crate::guest::with_module;
use crate::namespace::{in_new_namespace, run};
use ipnet::IpNet;
use portway_netlink::Error;
use portway_netlink::route::{Address, Change, Event, LinkKind, Monitor, NewLink, Peer, Rtnetlink};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const AF_UNSPEC: u8 = libc::AF_UNSPEC as u8;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;

/// Index of `lo`.
const LOOPBACK_IFINDEX: u32 = 1;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn veth(network: &mut Rtnetlink) -> u32 {
    let peer = Peer { name: "far".into(), namespace: None };
    let new = NewLink { name: "near".into(), kind: LinkKind::Veth(peer), up: false, master: None };
    network.apply(&Change::AddLink(new)).unwrap();
    network.link("near").unwrap().unwrap().index
}

/// Addresses of one family that were added (true) or deleted (false) within `time`.
fn address_events(monitor: &mut Monitor, time: Duration, v6: bool) -> Vec<(bool, IpNet)> {
    let events = monitor.wait_for(time).unwrap();
    let addresses = events.into_iter().filter_map(|event| match event {
        Event::Address { added, address } => Some((added, address.net)),
        Event::Link { .. } => None,
    });
    addresses.filter(|(_, net)| net.addr().is_ipv6() == v6).collect()
}

#[test]
fn addresses_of_other_processes_are_reported_and_own_ipv4_addresses_are_not() {
    in_new_namespace(|| {
        let mut network = Rtnetlink::open().unwrap();
        let mut monitor = Monitor::open(&[network.port()]).unwrap();
        assert_eq!(monitor.wait_for(Duration::from_millis(1)).unwrap(), []);
        let own = Address::new(LOOPBACK_IFINDEX, net("10.0.0.1/32"));
        network.apply(&Change::AddAddress(own)).unwrap();
        run("ip", "addr add 10.0.0.2/32 dev lo");
        network.apply(&Change::DeleteAddress(own)).unwrap();
        run("ip", "addr del 10.0.0.2/32 dev lo");
        assert_eq!(
            address_events(&mut monitor, Duration::ZERO, false),
            [(true, net("10.0.0.2/32")), (false, net("10.0.0.2/32"))]
        );
        let mut unfiltered = Monitor::open(&[]).unwrap();
        network.apply(&Change::AddAddress(own)).unwrap();
        assert_eq!(address_events(&mut unfiltered, Duration::ZERO, false), [(true, own.net)]);
        assert_eq!(address_events(&mut monitor, Duration::ZERO, false), []);
    });
}

/// The kernel does not report the port of the socket that added an IPv6 address. If this test fails because a newer
/// kernel does, callers need not recognise their own addresses any more.
#[test]
fn ipv6_addresses_of_every_process_are_reported() {
    in_new_namespace(|| {
        let mut network = Rtnetlink::open().unwrap();
        run("ip", "link set lo up");
        let mut monitor = Monitor::open(&[network.port()]).unwrap();
        let own = Address::new(LOOPBACK_IFINDEX, net("fd00::1/128"));
        network.apply(&Change::AddAddress(own)).unwrap();
        run("ip", "addr add fd00::2/128 dev lo nodad");
        let both = BTreeSet::from([(true, own.net), (true, net("fd00::2/128"))]);
        // The kernel reports an IPv6 address only after it has joined the address's multicast group.
        let (mut reported, start) = (BTreeSet::new(), Instant::now());
        while reported != both {
            assert!(start.elapsed() < Duration::from_secs(10), "only {reported:?} of {both:?}");
            reported.extend(address_events(&mut monitor, Duration::from_millis(100), true));
        }
    });
}

#[test]
fn added_changed_and_deleted_links_are_reported() {
    in_new_namespace(|| {
        let mut monitor = Monitor::open(&[]).unwrap();
        let links = |monitor: &mut Monitor| {
            let events = monitor.wait_for(Duration::from_secs(5)).unwrap();
            let links = events.into_iter().filter_map(|event| match event {
                Event::Link { added, name, .. } => Some((added, name)),
                Event::Address { .. } => None,
            });
            links.collect::<BTreeSet<_>>()
        };
        let both = |added: bool| BTreeSet::from([(added, "near".to_owned()), (added, "far".to_owned())]);
        run("ip", "link add near type veth peer name far");
        assert_eq!(links(&mut monitor), both(true));
        run("ip", "link set near up");
        assert!(links(&mut monitor).contains(&(true, "near".into())));
        run("ip", "link add bridge type bridge");
        run("ip", "link set near master bridge");
        run("ip", "link set near nomaster");
        assert!(
            links(&mut monitor).iter().all(|(added, _)| *added),
            "removal from a bridge is not a deletion"
        );
        run("ip", "link del near");
        assert!(links(&mut monitor).is_superset(&both(false)));
    });
}

#[test]
fn a_loss_is_an_error_and_later_events_are_reported() {
    in_new_namespace(|| {
        let mut network = Rtnetlink::open().unwrap();
        let mut monitor = Monitor::open(&[]).unwrap();
        let own = Address::new(LOOPBACK_IFINDEX, net("10.0.0.1/32"));
        let both = [Change::AddAddress(own), Change::DeleteAddress(own)];
        // More notifications than the receive buffer holds.
        let many: Vec<_> = both.iter().cycle().take(40_000).cloned().collect();
        assert!(network.apply_all(&many).unwrap().is_empty());
        assert!(matches!(monitor.wait_for(Duration::ZERO), Err(Error::Overrun)));
        network.apply(&both[0]).unwrap();
        assert_eq!(address_events(&mut monitor, Duration::ZERO, false), [(true, own.net)]);
    });
}

#[test]
fn a_link_has_an_alias_until_it_is_removed() {
    in_new_namespace(|| {
        let mut network = Rtnetlink::open().unwrap();
        let link = veth(&mut network);
        let mut alias = |alias: &str| {
            network.apply(&Change::SetAlias { link, alias: alias.into() }).unwrap();
            network.link("near").unwrap().unwrap().alias
        };
        assert_eq!(alias("made by portway"), Some("made by portway".into()));
        assert!(run("ip", "link show near").contains("alias made by portway"));
        assert_eq!(alias("x"), Some("x".into()));
        assert_eq!(alias(""), None);
    });
}

#[test]
fn only_the_addresses_of_the_requested_link_are_listed() {
    in_new_namespace(|| {
        let mut network = Rtnetlink::open().unwrap();
        run("ip", "link set lo up");
        let link = veth(&mut network);
        let own = ["10.0.0.1/32", "10.0.0.2/24", "fd00::1/128"].map(|text| Address::new(link, net(text)));
        let add = own.map(Change::AddAddress);
        assert!(network.apply_all(&add).unwrap().is_empty());
        let mut nets = |link, family| {
            let all = network.addresses_of(link, family).unwrap();
            assert!(all.iter().all(|a| a.link == link), "{all:?}");
            all.into_iter().map(|a| a.net).collect::<BTreeSet<_>>()
        };
        assert_eq!(nets(link, AF_INET), [net("10.0.0.1/32"), net("10.0.0.2/24")].into());
        assert_eq!(nets(link, AF_INET6), [net("fd00::1/128")].into());
        assert_eq!(nets(link, AF_UNSPEC), own.map(|a| a.net).into());
        assert_eq!(nets(LOOPBACK_IFINDEX, AF_UNSPEC), [net("127.0.0.1/8"), net("::1/128")].into());
        assert_eq!(nets(999, AF_UNSPEC), [].into(), "there is no such link");
        assert_eq!(nets(999, AF_INET), [].into());
        assert_eq!(network.addresses().unwrap().len(), 5, "afterwards all addresses are listed again");
    });
}

#[test]
fn a_dummy_holds_ten_thousand_addresses() {
    with_module("dummy", "route::a_dummy_holds_ten_thousand_addresses", || {
        let mut network = Rtnetlink::open().unwrap();
        run("ip", "link set lo up");
        let new = NewLink { name: "kube-ipvs0".into(), kind: LinkKind::Dummy, up: false, master: None };
        network.apply(&Change::AddLink(new)).unwrap();
        let dummy = network.link("kube-ipvs0").unwrap().unwrap();
        assert_eq!((dummy.kind.as_deref(), dummy.up, dummy.alias), (Some("dummy"), false, None));
        let link = dummy.index;
        network.apply(&Change::SetAlias { link, alias: "portway".into() }).unwrap();
        assert_eq!(network.link("kube-ipvs0").unwrap().unwrap().alias.as_deref(), Some("portway"));
        let ip = |n: u32| IpNet::new(Ipv4Addr::from_bits(0x0a60_0000 + n).into(), 32).unwrap();
        let wanted: Vec<_> = (1..=10_000).map(|n| Address::new(link, ip(n))).collect();
        let six = Address::new(link, net("fd96::1/128"));
        let mut add: Vec<_> = wanted.iter().copied().map(Change::AddAddress).collect();
        add.push(Change::AddAddress(six));
        let mut monitor = Monitor::open(&[network.port()]).unwrap();
        let (start, before) = (Instant::now(), network.sent());
        assert!(network.apply_all(&add).unwrap().is_empty());
        println!("10,001 addresses added in {:?}", start.elapsed());
        assert_eq!(network.sent() - before, 10_001);
        assert_eq!(address_events(&mut monitor, Duration::ZERO, false), []);
        assert_eq!(network.addresses_of(link, AF_INET).unwrap(), wanted);
        assert_eq!(network.addresses_of(link, AF_INET6).unwrap().len(), 1);
        let start = Instant::now();
        assert_eq!(network.addresses_of(LOOPBACK_IFINDEX, AF_UNSPEC).unwrap().len(), 2);
        println!("two addresses of another link listed in {:?}", start.elapsed());
        run("ip", "addr del 10.96.0.7/32 dev kube-ipvs0");
        assert_eq!(address_events(&mut monitor, Duration::ZERO, false), [(false, net("10.96.0.7/32"))]);
        network.apply(&Change::DeleteLink { link }).unwrap();
        assert_eq!(network.link("kube-ipvs0").unwrap(), None);
    });
}
