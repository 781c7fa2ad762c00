//! The cost of a change does not depend on the number of Services.

use crate::node::mode;
use portway_model::Family;
use portway_testkit::cluster::{TestCluster, service, settings};
use portway_testkit::objects::Endpoint;

/// The number of messages of some changes, in a cluster with `others` other Services.
fn costs(others: u8, family: Family) -> Vec<usize> {
    let web = || service("web", 1);
    let mut cluster = TestCluster::new().service(web()).slice("web", &Endpoint::all(&["a", "c"]));
    for n in 2..2 + others {
        let name = format!("other{n}");
        cluster.apply(service(&name, n));
        cluster.apply_hosts(&name, if n % 5 == 0 { &[] } else { &["b", "d"] });
    }
    let mut mode = mode(family);
    mode.sync(&settings(), cluster.all(family)).unwrap();
    let mut messages = |cluster: &mut TestCluster| {
        let before = mode.program().kernel().sent;
        assert!(!mode.sync(&settings(), cluster.changes(family)).unwrap().full);
        mode.program().kernel().sent - before
    };
    let mut all = Vec::new();
    for hosts in [&["a", "c", "d"][..], &["a", "d"], &["b", "d"], &[], &["a"]] {
        cluster.apply_hosts("web", hosts);
        all.push(messages(&mut cluster));
    }
    cluster.delete("web");
    all.push(messages(&mut cluster));
    cluster.apply(web());
    all.push(messages(&mut cluster));
    all
}

#[test]
fn other_services_do_not_increase_the_cost_of_a_change() {
    for family in Family::ALL {
        let alone = costs(0, family);
        // The cost may be lower: a member that another Service has in a set already is not added.
        assert!(costs(200, family).iter().zip(&alone).all(|(among, alone)| among <= alone));
        assert!(alone[..3].iter().all(|n| *n <= 5), "one endpoint was added, removed or replaced: {alone:?}");
        assert!(alone.iter().all(|n| *n <= 10), "{alone:?}");
    }
}
