//! What `nft` does is told, with its name on it; what our own sockets do is not.

use crate::namespace::{alone, run};
use portway_netlink::nft::{Batch, Family, Monitor, Rule, Touched, list};
use portway_netlink::{Error, Protocol, Socket};

const WATCHED: [&str; 2] = ["portway", "kube-proxy"];

#[test]
fn a_commit_tells_its_generation_its_process_and_what_it_touched() {
    alone(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let mut monitor = Monitor::open(&[]).unwrap();
        run("nft", "add table ip other; add table inet portway");
        assert_eq!(monitor.read(&WATCHED).unwrap(), []);
        run(
            "nft",
            "add table ip portway; add chain ip portway c; add table ip6 kube-proxy; add table ip other2",
        );
        let commits = monitor.wait(&WATCHED).unwrap();
        assert_eq!(commits.len(), 1, "{commits:?}");
        assert_eq!(commits[0].generation, list::generation(&mut socket).unwrap());
        let touched = |family, table: &str, chain: Option<&str>| Touched {
            family,
            table: table.to_owned(),
            chain: chain.map(str::to_owned),
        };
        assert_eq!(
            commits[0].touched,
            [touched(2, "portway", None), touched(2, "portway", Some("c")), touched(10, "kube-proxy", None),]
        );
        assert_eq!(commits[0].process.as_ref().map(|(_, name)| name.as_str()), Some("nft"));
    });
}

#[test]
fn two_transactions_are_two_commits() {
    alone(|| {
        let mut monitor = Monitor::open(&[]).unwrap();
        run("nft", "add table ip portway");
        run("nft", "delete table ip portway");
        let commits = monitor.read(&WATCHED).unwrap();
        assert_eq!(commits.len(), 2, "{commits:?}");
        assert_eq!(commits[0].generation + 1, commits[1].generation);
        assert_ne!(commits[0].process, commits[1].process, "two processes");
    });
}

#[test]
fn our_own_commits_are_not_told_but_those_in_between_are() {
    alone(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let mut monitor = Monitor::open(&[socket.port()]).unwrap();
        let add = |socket: &mut Socket| {
            let mut batch = Batch::new(Family::Ipv4, "portway");
            batch.add_table();
            batch.commit(socket).unwrap();
        };
        add(&mut socket);
        assert_eq!(monitor.read(&WATCHED).unwrap(), []);
        run("nft", "add chain ip portway c");
        let theirs = list::generation(&mut socket).unwrap();
        add(&mut socket);
        let told: Vec<u32> = monitor.read(&WATCHED).unwrap().iter().map(|c| c.generation).collect();
        assert_eq!(told, [theirs]);
    });
}

#[test]
fn what_was_lost_is_an_error_and_the_next_commit_is_read_again() {
    alone(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let mut monitor = Monitor::open(&[]).unwrap();
        run("nft", "add table ip portway; add chain ip portway c");
        // More than the monitor has room for, and small enough to be sent without privilege.
        for _ in 0..400 {
            let mut batch = Batch::new(Family::Ipv4, "portway");
            batch.flush_chain("c");
            for _ in 0..500 {
                batch.add_rule("c", &Rule { exprs: Vec::new() });
            }
            batch.commit(&mut socket).unwrap();
        }
        assert!(matches!(monitor.read(&WATCHED), Err(Error::Overrun)));
        // What had arrived before the loss ends in the middle of a transaction; the next one is not blamed for it.
        run("nft", "add table ip other");
        assert_eq!(monitor.read(&WATCHED).unwrap(), []);
        run("nft", "add table ip6 kube-proxy");
        let commits = monitor.read(&WATCHED).unwrap();
        assert_eq!(commits.len(), 1, "{commits:?}");
        assert_eq!(commits[0].generation, list::generation(&mut socket).unwrap());
    });
}
