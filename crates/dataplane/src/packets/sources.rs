//! How a pod's traffic is told from other traffic, and what that changes.

use super::{Case, Row, Scene};
use crate::world::{World, both, endpoint, settings};
use crate::{LocalTraffic, Settings};
use serde_json::json;

pub(super) const CASES: &[Case] = named![
    "sources":
    by_address,
    by_one_range_only,
    by_the_bridge,
    by_the_beginning_of_the_interface,
    not_at_all,
    masquerade_all_is_for_cluster_ips,
    another_mark_does_the_same,
];

fn world() -> World {
    let local = json!({"externalTrafficPolicy": "Local", "externalIPs": both("ext2")});
    World::new()
        .service("web", 1, json!({}), json!({}))
        .slice("web", &[endpoint("c")])
        .service("local", 2, local, json!({}))
        .slice("local", &["a", "c"].map(endpoint))
}

/// Where packets end if pods' traffic is told so.
fn told(local: LocalTraffic, rows: &[Row]) -> Vec<Scene> {
    vec![Scene::new(world(), rows).with(Settings { local, ..settings() })]
}

fn by_address() -> Vec<Scene> {
    told(
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

fn by_one_range_only() -> Vec<Scene> {
    let ranges = vec!["10.244.1.0/24".parse().unwrap(), "fd10:244:1::/64".parse().unwrap()];
    told(
        LocalTraffic::Cidrs(ranges),
        &[("a", "svc1:80", "c"), ("d", "svc1:80", "c masqueraded"), ("d", "ext2:80", "a")],
    )
}

fn by_the_bridge() -> Vec<Scene> {
    told(
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

fn by_the_beginning_of_the_interface() -> Vec<Scene> {
    told(
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

fn not_at_all() -> Vec<Scene> {
    told(
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

fn masquerade_all_is_for_cluster_ips() -> Vec<Scene> {
    let rows = [
        ("a", "svc1:80", "c masqueraded"),
        ("client", "svc1:80", "c masqueraded"),
        ("client", "ext2:80", "a"),
        ("a", "stranger:80", "untouched"),
    ];
    let masquerading = |local| Settings { masquerade_all: true, local, ..settings() };
    [settings().local, LocalTraffic::Unknown]
        .map(|local| Scene::new(world(), &rows).with(masquerading(local)))
        .into()
}

fn another_mark_does_the_same() -> Vec<Scene> {
    let rows = [("a", "svc1:80", "c"), ("client", "svc1:80", "c masqueraded")];
    vec![Scene::new(world(), &rows).with(Settings { masquerade_mark: 1 << 31, ..settings() })]
}
