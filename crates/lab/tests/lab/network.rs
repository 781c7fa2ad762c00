//! The messages of `netlink::route` and the kernel: links, addresses, routes and neighbours in a namespace of their
//! own.

use ipnet::IpNet;
use portway_lab::Namespace;
use portway_netlink::route::{
    Address, Change, LinkKind, Neighbour, NewLink, Peer, Route, RouteKind, Rtnetlink,
};
use portway_testkit::harness::Test;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::Instant;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::function("network::links_are_added_changed_and_deleted", links_are_added_changed_and_deleted),
        Test::function("network::added_objects_are_listed", added_objects_are_listed),
        Test::function("network::thousands_of_addresses_at_once", thousands_of_addresses_at_once),
        Test::function(
            "network::a_batch_reports_the_changes_that_failed",
            a_batch_reports_the_changes_that_failed,
        ),
    ]
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn veth<'a>(name: &str, peer: &str, namespace: Option<&'a Namespace>) -> Change<'a> {
    let peer = Peer { name: peer.into(), namespace: namespace.map(AsFd::as_fd) };
    Change::AddLink(NewLink { name: name.into(), kind: LinkKind::Veth(peer), up: true, master: None })
}

/// Opens a netlink socket in a namespace, to which the socket belongs from then on.
fn network(namespace: &Namespace) -> Rtnetlink {
    namespace.run(|| Rtnetlink::open().unwrap())
}

fn links_are_added_changed_and_deleted() {
    let (here, there) = (Namespace::new("links-here").unwrap(), Namespace::new("links-there").unwrap());
    let (mut near, mut far) = (network(&here), network(&there));
    near.apply(&veth("cable", "plug", Some(&there))).unwrap();
    let plug = far.link("plug").unwrap().unwrap();
    assert_eq!((plug.kind.as_deref(), plug.up, plug.carrier), (Some("veth"), false, false));
    far.apply(&Change::SetUp { link: plug.index, up: true }).unwrap();
    far.apply(&Change::SetName { link: plug.index, name: "eth0".into() }).unwrap();
    assert_eq!(far.link("plug").unwrap(), None);
    let eth0 = far.link("eth0").unwrap().unwrap();
    assert!(eth0.up && eth0.carrier);

    let bridge = NewLink { name: "br0".into(), kind: LinkKind::Bridge, up: true, master: None };
    near.apply(&Change::AddLink(bridge)).unwrap();
    let bridge = near.link("br0").unwrap().unwrap().index;
    let cable = near.link("cable").unwrap().unwrap().index;
    near.apply(&Change::SetMaster { link: cable, master: Some(bridge) }).unwrap();
    assert_eq!(near.link("cable").unwrap().unwrap().master, Some(bridge));
    near.apply(&Change::SetMaster { link: cable, master: None }).unwrap();
    assert_eq!(near.link("cable").unwrap().unwrap().master, None);

    near.apply(&Change::SetNamespace { link: bridge, namespace: there.as_fd() }).unwrap_err();
    near.apply(&Change::SetNamespace { link: cable, namespace: there.as_fd() }).unwrap();
    assert_eq!(near.link("cable").unwrap(), None);
    let names: Vec<_> = far.links().unwrap().into_iter().map(|l| l.name).collect();
    assert!(names.contains(&"cable".to_owned()) && names.contains(&"eth0".to_owned()), "{names:?}");

    let link = far.link("eth0").unwrap().unwrap().index;
    far.apply(&Change::DeleteLink { link }).unwrap();
    assert_eq!(far.link("cable").unwrap(), None, "both ends of a veth pair are deleted together");
    let error = far.apply(&Change::DeleteLink { link }).unwrap_err().to_string();
    assert!(error.starts_with("kernel refused to delete eth0: "), "{error}");
}

fn added_objects_are_listed() {
    let namespace = Namespace::new("listed").unwrap();
    let mut network = network(&namespace);
    network.apply(&veth("eth0", "far", None)).unwrap();
    let link = network.link("eth0").unwrap().unwrap().index;
    let addresses =
        ["10.1.0.1/24", "10.2.0.1/32", "fd01::1/64", "fe80::9/64"].map(|n| Address::new(link, net(n)));
    let gateway4 = Route::via(net("0.0.0.0/0"), "10.1.0.9".parse().unwrap(), link);
    let gateway6 = Route::via(net("::/0"), "fd01::9".parse().unwrap(), link);
    let routes = [
        gateway4,
        Route { metric: Some(1024), ..gateway6 },
        Route::via(net("10.3.0.0/16"), "172.16.0.1".parse().unwrap(), link).onlink(),
        Route::on_link(net("10.4.0.1/32"), link),
        Route { metric: Some(1024), ..Route::on_link(net("fd04::1/128"), link) },
        Route::blackhole(net("10.5.0.0/16")),
        Route { table: 1000, ..Route::on_link(net("10.6.0.0/16"), link) },
        Route { source: Some("10.2.0.1".parse().unwrap()), ..Route::on_link(net("10.7.0.0/16"), link) },
    ];
    let mac = Some([2, 0, 0, 0, 0, 1]);
    let neighbour = Neighbour { link, ip: "10.1.0.9".parse().unwrap(), mac, permanent: true };

    let mut changes: Vec<_> = addresses.iter().map(|a| Change::AddAddress(*a)).collect();
    changes.extend(routes.iter().map(|r| Change::AddRoute(*r)));
    changes.push(Change::SetNeighbour(neighbour));
    let failed = network.apply_all(&changes).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    let listed = network.addresses().unwrap();
    assert!(addresses.iter().all(|a| listed.contains(a)), "{listed:#?}");
    let listed = network.routes().unwrap();
    for route in &routes {
        assert!(listed.contains(route), "{route} is not among {listed:#?}");
    }
    assert!(listed.iter().any(|r| r.kind == RouteKind::Local));
    assert!(network.neighbours().unwrap().contains(&neighbour));

    let replaced = Route::via(net("0.0.0.0/0"), "10.1.0.8".parse().unwrap(), link);
    network.apply(&Change::ReplaceRoute(replaced)).unwrap();
    let defaults: Vec<_> =
        network.routes().unwrap().into_iter().filter(|r| r.to == net("0.0.0.0/0")).collect();
    assert_eq!(defaults, [replaced]);

    network.apply(&Change::DeleteRoute(replaced)).unwrap();
    network.apply(&Change::DeleteAddress(addresses[1])).unwrap();
    network.apply(&Change::DeleteNeighbour(neighbour)).unwrap();
    assert!(!network.routes().unwrap().contains(&replaced));
    assert!(!network.addresses().unwrap().contains(&addresses[1]));
    assert!(!network.neighbours().unwrap().contains(&neighbour));
}

fn numbered(link: u32, count: u32) -> Vec<Address> {
    let ip = |n| Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 0, 0).to_bits() + n);
    (1..=count).map(|n| Address::new(link, IpNet::new(ip(n).into(), 32).unwrap())).collect()
}

fn thousands_of_addresses_at_once() {
    let namespace = Namespace::new("thousands").unwrap();
    let mut network = network(&namespace);
    let wanted = numbered(1, 5000);
    let start = Instant::now();
    let add: Vec<_> = wanted.iter().map(|a| Change::AddAddress(*a)).collect();
    assert!(network.apply_all(&add).unwrap().is_empty());
    let added = start.elapsed();
    assert_eq!(network.addresses().unwrap().len(), wanted.len());
    let delete: Vec<_> = wanted.iter().map(|a| Change::DeleteAddress(*a)).collect();
    assert!(network.apply_all(&delete).unwrap().is_empty());
    println!("5000 addresses added in {added:?}, deleted in {:?}", start.elapsed() - added);
    assert!(network.addresses().unwrap().is_empty());
}

fn a_batch_reports_the_changes_that_failed() {
    let namespace = Namespace::new("failures").unwrap();
    let mut network = network(&namespace);
    network.link("lo").unwrap();
    let wanted = numbered(1, 1000);
    let add: Vec<_> = wanted.iter().map(|a| Change::AddAddress(*a)).collect();
    // Addresses that exist already: one in the middle of a datagram, one at its end.
    for taken in [500, 127] {
        network.apply(&Change::AddAddress(wanted[taken])).unwrap();
    }
    let failed = network.apply_all(&add).unwrap();
    assert_eq!(failed.iter().map(|f| f.index).collect::<Vec<_>>(), [127, 500]);
    let text = failed[0].error.to_string();
    assert!(text.starts_with("kernel refused to add address 10.96.0.128/32 to lo: File exists"), "{text}");
    assert!(failed[0].error.is_exists());
    // All of them exist now: no error may be lost.
    assert_eq!(network.apply_all(&add).unwrap().len(), 1000);
}
