//! Detection of local traffic, and the verdicts that depend on it.

use super::{Case, Row, Scenario};
use crate::cluster::{TestCluster, both, service, settings};
use crate::objects::Endpoint;
use portway_dataplane::{LocalTraffic, Settings};

pub(super) const CASES: &[Case] = packet_cases![
    "sources":
    local_by_address,
    local_by_one_range,
    local_by_bridge_interface,
    local_by_interface_prefix,
    local_unknown,
    masquerade_all_applies_to_cluster_ips,
    another_masquerade_mark_works,
];

fn cluster() -> TestCluster {
    let local = service("local", 2).external_local().external_ips(&both("ext2"));
    TestCluster::new()
        .service(service("web", 1))
        .slice("web", &Endpoint::all(&["c"]))
        .service(local)
        .slice("local", &Endpoint::all(&["a", "c"]))
}

/// The verdicts if local traffic is detected this way.
fn detected(local: LocalTraffic, rows: &[Row]) -> Vec<Scenario> {
    vec![Scenario::new(cluster(), rows).with(Settings { local, ..settings() })]
}

fn local_by_address() -> Vec<Scenario> {
    detected(
        settings().local,
        &[
            ("a", "svc1:80", "c"),
            ("a%eth0", "svc1:80", "c"),
            ("client%veth-a", "svc1:80", "c masqueraded"),
            ("node", "svc1:80", "c masqueraded"),
            ("d", "ext2:80", "a c"),
            ("client", "ext2:80", "a"),
        ],
    )
}

fn local_by_one_range() -> Vec<Scenario> {
    let ranges = vec!["10.244.1.0/24".parse().unwrap(), "fd10:244:1::/64".parse().unwrap()];
    detected(
        LocalTraffic::Cidrs(ranges),
        &[("a", "svc1:80", "c"), ("d", "svc1:80", "c masqueraded"), ("d", "ext2:80", "a")],
    )
}

fn local_by_bridge_interface() -> Vec<Scenario> {
    detected(
        LocalTraffic::Interface("cni0".into()),
        &[
            ("a%cni0", "svc1:80", "c"),
            ("a%cni01", "svc1:80", "c masqueraded"),
            ("a%eth0", "svc1:80", "c masqueraded"),
            ("node", "svc1:80", "c masqueraded"),
            ("d%cni0", "ext2:80", "a c"),
            ("d%eth0", "ext2:80", "a"),
            ("node", "ext2:80", "a c masqueraded"),
        ],
    )
}

fn local_by_interface_prefix() -> Vec<Scenario> {
    detected(
        LocalTraffic::InterfacePrefix("veth".into()),
        &[
            ("a%veth1234", "svc1:80", "c"),
            ("a%veth", "svc1:80", "c"),
            ("a%vet", "svc1:80", "c masqueraded"),
            ("client", "svc1:80", "c masqueraded"),
            ("node", "svc1:80", "c masqueraded"),
            ("d%veth1", "ext2:80", "a c"),
        ],
    )
}

fn local_unknown() -> Vec<Scenario> {
    detected(
        LocalTraffic::Unknown,
        &[
            ("a", "svc1:80", "c"),
            ("client", "svc1:80", "c"),
            ("node", "svc1:80", "c"),
            ("d", "ext2:80", "a"),
            ("node", "ext2:80", "a c masqueraded"),
        ],
    )
}

fn masquerade_all_applies_to_cluster_ips() -> Vec<Scenario> {
    let rows = [
        ("a", "svc1:80", "c masqueraded"),
        ("client", "svc1:80", "c masqueraded"),
        ("client", "ext2:80", "a"),
        ("a", "stranger:80", "untouched"),
    ];
    let masquerading = |local| Settings { masquerade_all: true, local, ..settings() };
    [settings().local, LocalTraffic::Unknown]
        .map(|local| Scenario::new(cluster(), &rows).with(masquerading(local)))
        .into()
}

fn another_masquerade_mark_works() -> Vec<Scenario> {
    let rows = [("a", "svc1:80", "c"), ("client", "svc1:80", "c masqueraded")];
    vec![Scenario::new(cluster(), &rows).with(Settings { masquerade_mark: 1 << 31, ..settings() })]
}
