//! How a pod's traffic is told from other traffic, and what that changes.

use crate::check;
use crate::cluster::{World, both, endpoint, settings};
use portway_dataplane::{LocalTraffic, Settings};
use serde_json::json;

fn world() -> World {
    let local = json!({"externalTrafficPolicy": "Local", "externalIPs": both("ext2")});
    World::new()
        .service("web", 1, json!({}), json!({}))
        .slice("web", &[endpoint("c")])
        .service("local", 2, local, json!({}))
        .slice("local", &["a", "c"].map(endpoint))
}

fn with(local: LocalTraffic) -> Settings {
    Settings { local, ..settings() }
}

#[test]
fn by_address() {
    check(
        world(),
        &settings(),
        &[
            ("a", "svc1:80", "c"),
            ("a%eth0", "svc1:80", "c"),
            ("client%veth-a", "svc1:80", "c masqueraded"),
            ("node", "svc1:80", "c masqueraded"),
            ("d", "ext2:80", "a c"),
            ("client", "ext2:80", "a"),
        ],
    );
}

#[test]
fn by_one_range_only() {
    let ranges = vec!["10.244.1.0/24".parse().unwrap(), "fd10:244:1::/64".parse().unwrap()];
    check(
        world(),
        &with(LocalTraffic::Cidrs(ranges)),
        &[("a", "svc1:80", "c"), ("d", "svc1:80", "c masqueraded"), ("d", "ext2:80", "a")],
    );
}

#[test]
fn by_the_bridge() {
    check(
        world(),
        &with(LocalTraffic::Interface("cni0".into())),
        &[
            ("a%cni0", "svc1:80", "c"),
            ("a%cni01", "svc1:80", "c masqueraded"),
            ("a%eth0", "svc1:80", "c masqueraded"),
            ("node", "svc1:80", "c masqueraded"),
            ("d%cni0", "ext2:80", "a c"),
            ("d%eth0", "ext2:80", "a"),
            ("node", "ext2:80", "a c masqueraded"),
        ],
    );
}

#[test]
fn by_the_beginning_of_the_interface() {
    check(
        world(),
        &with(LocalTraffic::InterfacePrefix("veth".into())),
        &[
            ("a%veth1234", "svc1:80", "c"),
            ("a%veth", "svc1:80", "c"),
            ("a%vet", "svc1:80", "c masqueraded"),
            ("client", "svc1:80", "c masqueraded"),
            ("node", "svc1:80", "c masqueraded"),
            ("d%veth1", "ext2:80", "a c"),
        ],
    );
}

#[test]
fn not_at_all() {
    check(
        world(),
        &with(LocalTraffic::Unknown),
        &[
            ("a", "svc1:80", "c"),
            ("client", "svc1:80", "c"),
            ("node", "svc1:80", "c"),
            ("d", "ext2:80", "a"),
            ("node", "ext2:80", "a c masqueraded"),
        ],
    );
}

#[test]
fn masquerade_all_is_for_cluster_ips() {
    for local in [settings().local, LocalTraffic::Unknown] {
        check(
            world(),
            &Settings { masquerade_all: true, local, ..settings() },
            &[
                ("a", "svc1:80", "c masqueraded"),
                ("client", "svc1:80", "c masqueraded"),
                ("client", "ext2:80", "a"),
                ("a", "stranger:80", "untouched"),
            ],
        );
    }
}

#[test]
fn another_mark_does_the_same() {
    let rows = [("a", "svc1:80", "c"), ("client", "svc1:80", "c masqueraded")];
    check(world(), &Settings { masquerade_mark: 1 << 31, ..settings() }, &rows);
}
