//! Session affinity.

use super::{Case, Scenario};
use crate::cluster::{TestCluster, both, service};
use crate::objects::{Endpoint, Service};

pub(super) const CASES: &[Case] = packet_cases![
    "affinity":
    new_client_reaches_any_endpoint,
    client_with_affinity_keeps_its_endpoint_at_every_frontend,
    policy_local_overrides_affinity_to_a_remote_endpoint,
    affinity_ends_when_the_endpoint_is_removed,
    affinity_holds_while_other_endpoints_change,
];

/// A cluster with a Service with affinity, changed by `change`, at `svc1`, `ext1` and node port 30001. Its endpoints
/// are `a`, `b` and `c`.
pub fn service_with_affinity(change: fn(Service) -> Service) -> TestCluster {
    let web = service("web", 1).affinity(10_800).external_ips(&both("ext1")).node_port(30001);
    TestCluster::new().service(change(web)).slice("web", &Endpoint::all(&HOSTS))
}

/// The Service without a change.
fn plain() -> TestCluster {
    service_with_affinity(|web| web)
}

/// With the external policy Local.
fn local() -> TestCluster {
    service_with_affinity(Service::external_local)
}

const HOSTS: [&str; 3] = ["a", "b", "c"];
/// The verdict for a client with affinity to each of [`HOSTS`].
const KEPT: [&str; 3] = ["a masqueraded", "b masqueraded", "c masqueraded"];
/// The verdict for that client after the endpoint was removed.
const OTHERS: [&str; 3] = ["b c masqueraded", "a c masqueraded", "a b masqueraded"];

/// One scenario for each endpoint that a client has affinity to.
fn with_affinity(then: impl Fn(usize, Scenario) -> Scenario) -> Vec<Scenario> {
    let connected = |host| {
        let first = [("client", "svc1:80", "a b c masqueraded")];
        Scenario::new(plain(), &first).connect("client", "svc1:80", host)
    };
    HOSTS.into_iter().enumerate().map(|(i, host)| then(i, connected(host))).collect()
}

fn new_client_reaches_any_endpoint() -> Vec<Scenario> {
    let policy_cluster = Scenario::new(
        plain(),
        &[
            ("d", "svc1:80", "a b c"),
            ("client", "svc1:80", "a b c masqueraded"),
            ("client", "node:30001", "a b c masqueraded"),
            ("a", "svc1:80", "a masqueraded or b c"),
        ],
    );
    let policy_local = Scenario::new(
        local(),
        &[
            ("client", "ext1:80", "a b"),
            ("client", "node:30001", "a b"),
            ("d", "ext1:80", "a b c"),
            ("node", "node:30001", "a b c masqueraded"),
            ("client", "svc1:80", "a b c masqueraded"),
        ],
    );
    vec![policy_cluster, policy_local]
}

fn client_with_affinity_keeps_its_endpoint_at_every_frontend() -> Vec<Scenario> {
    with_affinity(|i, scenario| {
        let again = ["svc1:80", "node:30001", "ext1:80"].map(|to| ("client", to, KEPT[i]));
        scenario.rows(&again).rows(&[("stranger", "svc1:80", "a b c masqueraded")])
    })
}

fn policy_local_overrides_affinity_to_a_remote_endpoint() -> Vec<Scenario> {
    let scenario = Scenario::new(local(), &[])
        .connect("client", "svc1:80", "c")
        // Policy Local does not allow c for traffic from outside, whatever the affinity.
        .rows(&[("client", "svc1:80", "c masqueraded"), ("client", "ext1:80", "a b")]);
    vec![scenario]
}

fn affinity_ends_when_the_endpoint_is_removed() -> Vec<Scenario> {
    with_affinity(|i, scenario| {
        scenario.endpoints("web", &without(HOSTS[i])).rows(&[("client", "svc1:80", OTHERS[i])])
    })
}

fn affinity_holds_while_other_endpoints_change() -> Vec<Scenario> {
    with_affinity(|i, scenario| {
        let kept = [("client", "svc1:80", KEPT[i])];
        scenario
            .endpoints("web", &["a", "b", "c", "d"])
            .rows(&kept)
            .endpoints("web", &[HOSTS[i], HOSTS[(i + 1) % 3]])
            .rows(&kept)
            .endpoints("web", &without(HOSTS[i]))
            .rows(&[("client", "svc1:80", OTHERS[i])])
    })
}

fn without(host: &str) -> Vec<&'static str> {
    HOSTS.into_iter().filter(|p| *p != host).collect()
}
