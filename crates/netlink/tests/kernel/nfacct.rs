//! Counters are made once, count what rules send them, and cannot be removed from under a rule.

use crate::namespace::{alone, run};
use portway_netlink::{Protocol, Socket, nfacct};
use std::net::UdpSocket;

#[test]
fn a_counter_lives_from_create_to_delete() {
    alone(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        assert_eq!(nfacct::packets(&mut socket, "dropped").unwrap(), None);
        assert!(!nfacct::delete(&mut socket, "dropped").unwrap());
        assert!(nfacct::create(&mut socket, "dropped").unwrap());
        assert!(!nfacct::create(&mut socket, "dropped").unwrap(), "it is there already");
        assert!(nfacct::create(&mut socket, "another").unwrap());
        assert_eq!(nfacct::packets(&mut socket, "dropped").unwrap(), Some(0));
        assert!(nfacct::delete(&mut socket, "dropped").unwrap());
        assert_eq!(nfacct::packets(&mut socket, "dropped").unwrap(), None);
        assert_eq!(nfacct::packets(&mut socket, "another").unwrap(), Some(0), "only the named one is gone");
        assert!(nfacct::create(&mut socket, &"x".repeat(40)).is_err(), "too long a name is no success");
    });
}

#[test]
fn packets_that_match_a_rule_are_counted() {
    alone(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        nfacct::create(&mut socket, "sent").unwrap();
        run("ip", "link set lo up");
        run("iptables-legacy", "-w -A OUTPUT -p udp --dport 9 -m nfacct --nfacct-name sent");
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..3 {
            // Nobody listens, and the second one may be told so.
            sender.send_to(b"x", "127.0.0.1:9").ok();
        }
        assert_eq!(nfacct::packets(&mut socket, "sent").unwrap(), Some(3));
        let busy = nfacct::delete(&mut socket, "sent").unwrap_err();
        assert!(busy.is_transient(), "{busy}");
        run("iptables-legacy", "-w -F OUTPUT");
        assert!(nfacct::delete(&mut socket, "sent").unwrap());
    });
}
