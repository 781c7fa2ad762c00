//! Flows are created with their translation, found, and deleted.

use crate::namespace::{in_new_namespace, run};
use portway_netlink::conntrack::{self, Filter, NewFlow, Tuple, UDP};
use portway_netlink::{Protocol, Socket};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn tuple(from: &str, to: &str) -> Tuple {
    Tuple::udp(address(from), address(to))
}

#[test]
fn a_created_flow_is_translated_in_both_directions() {
    in_new_namespace(|| {
        // Translation needs a NAT chain of any kind.
        run("nft", "add table inet x");
        run("nft", "add chain inet x y { type nat hook prerouting priority -100 ; }");
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let table = [
            ("10.9.9.9:4000", "10.96.0.10:53", "192.0.2.1:5000", "10.244.1.2:5353"),
            ("[fd09::9]:4000", "[fd96::10]:53", "[2001:db8::1]:5000", "[fd10::2]:5353"),
        ];
        for (client, service, source, endpoint) in table {
            let original = tuple(client, service);
            let (source, endpoint) = (address(source), address(endpoint));
            let timeout = Duration::from_secs(60);
            let new = NewFlow { original, source, endpoint, zone: 0, timeout };
            assert!(conntrack::create(&mut socket, &new).unwrap());
            assert!(!conntrack::create(&mut socket, &new).unwrap(), "it exists");
            let filter = Filter { protocol: UDP, destination: None };
            let v6 = matches!(endpoint.ip(), IpAddr::V6(_));
            let flows = conntrack::list(&mut socket, v6, filter).unwrap();
            assert_eq!(flows.len(), 1);
            let flow = flows[0];
            assert_eq!(flow.original, original);
            let reply = tuple(&endpoint.to_string(), &source.to_string());
            assert_eq!((flow.reply, flow.translated), (reply, true));
            assert_eq!(conntrack::find(&mut socket, &reply).unwrap(), Some(flow));
            assert!(conntrack::delete(&mut socket, &flow).unwrap());
            assert!(!conntrack::delete(&mut socket, &flow).unwrap());
        }
    });
}
