//! Counters are created once, count the packets of rules, and cannot be deleted while a rule uses them.

use crate::namespace::{in_new_namespace, run};
use portway_netlink::{Protocol, Socket, nfacct};
use std::net::UdpSocket;

#[test]
fn a_counter_exists_from_create_to_delete() {
    in_new_namespace(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        assert_eq!(nfacct::packets(&mut socket, "dropped").unwrap(), None);
        assert!(!nfacct::delete(&mut socket, "dropped").unwrap());
        assert!(nfacct::create(&mut socket, "dropped").unwrap());
        assert!(!nfacct::create(&mut socket, "dropped").unwrap(), "it exists");
        assert!(nfacct::create(&mut socket, "another").unwrap());
        assert_eq!(nfacct::packets(&mut socket, "dropped").unwrap(), Some(0));
        assert!(nfacct::delete(&mut socket, "dropped").unwrap());
        assert_eq!(nfacct::packets(&mut socket, "dropped").unwrap(), None);
        assert_eq!(
            nfacct::packets(&mut socket, "another").unwrap(),
            Some(0),
            "only the named one was deleted"
        );
        assert!(nfacct::create(&mut socket, &"x".repeat(40)).is_err(), "a name that is too long is refused");
    });
}

#[test]
fn packets_that_match_a_rule_are_counted() {
    in_new_namespace(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        nfacct::create(&mut socket, "sent").unwrap();
        run("ip", "link set lo up");
        run("iptables-legacy", "-w -A OUTPUT -p udp --dport 9 -m nfacct --nfacct-name sent");
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..3 {
            // No socket listens on the port, so the second `send_to` may report ECONNREFUSED.
            sender.send_to(b"x", "127.0.0.1:9").ok();
        }
        assert_eq!(nfacct::packets(&mut socket, "sent").unwrap(), Some(3));
        let busy = nfacct::delete(&mut socket, "sent").unwrap_err();
        assert!(busy.is_transient(), "{busy}");
        run("iptables-legacy", "-w -F OUTPUT");
        assert!(nfacct::delete(&mut socket, "sent").unwrap());
    });
}
