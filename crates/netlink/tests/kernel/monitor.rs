//! The monitor reports the commits of `nft` with its process name, and not those of ignored sockets.

use crate::namespace::{in_new_namespace, run};
use portway_netlink::nft::{Batch, Family, Monitor, Rule, Touched, list};
use portway_netlink::{Error, Protocol, Socket};

const WATCHED: [&str; 2] = ["portway", "kube-proxy"];

#[test]
fn a_commit_has_its_generation_its_process_and_the_touched_tables() {
    in_new_namespace(|| {
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
            [
                touched(Family::Ipv4.number(), "portway", None),
                touched(Family::Ipv4.number(), "portway", Some("c")),
                touched(Family::Ipv6.number(), "kube-proxy", None),
            ]
        );
        assert_eq!(commits[0].process.as_ref().map(|(_, name)| name.as_str()), Some("nft"));
    });
}

#[test]
fn two_transactions_are_two_commits() {
    in_new_namespace(|| {
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
fn commits_of_ignored_sockets_are_not_reported_and_others_are() {
    in_new_namespace(|| {
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
        let generation = list::generation(&mut socket).unwrap();
        add(&mut socket);
        let reported: Vec<u32> = monitor.read(&WATCHED).unwrap().iter().map(|c| c.generation).collect();
        assert_eq!(reported, [generation]);
    });
}

#[test]
fn a_loss_is_an_error_and_later_commits_are_reported() {
    in_new_namespace(|| {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let mut monitor = Monitor::open(&[]).unwrap();
        run("nft", "add table ip portway; add chain ip portway c");
        // More notifications than the receive buffer holds, in batches small enough to be sent without privilege.
        for _ in 0..400 {
            let mut batch = Batch::new(Family::Ipv4, "portway");
            batch.flush_chain("c");
            for _ in 0..500 {
                batch.add_rule("c", &Rule { exprs: Vec::new() });
            }
            batch.commit(&mut socket).unwrap();
        }
        assert!(matches!(monitor.read(&WATCHED), Err(Error::Overrun)));
        // The notifications before the loss end within a transaction, and must not count to the next commit.
        run("nft", "add table ip other");
        assert_eq!(monitor.read(&WATCHED).unwrap(), []);
        run("nft", "add table ip6 kube-proxy");
        let commits = monitor.read(&WATCHED).unwrap();
        assert_eq!(commits.len(), 1, "{commits:?}");
        assert_eq!(commits[0].generation, list::generation(&mut socket).unwrap());
    });
}
