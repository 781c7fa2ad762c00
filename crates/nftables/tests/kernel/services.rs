//! A cluster with a Service for each combination of features that the mode renders differently.

use portway_model::Protocol;
use portway_testkit::cluster::{TestCluster, both, service, service_with_all_frontends};
use portway_testkit::objects::Endpoint;

pub(crate) fn every_kind_of_service() -> TestCluster {
    let ranges = ["192.0.2.0/24", "192.168.50.0/24", "2001:db8:1::/64"];
    let mut cluster = TestCluster::new()
        .service(service("plain", 1))
        .slice("plain", &Endpoint::all(&["a", "c"]))
        .service(service("empty", 2).node_port(30002))
        .service(service("sticky", 3).affinity(10_800).node_port(30003))
        .slice("sticky", &Endpoint::all(&["a", "c", "d"]))
        .service(service_with_all_frontends("balanced", 4).external_local().source_ranges(&ranges))
        .slice("balanced", &Endpoint::all(&["a", "c"]))
        .service(service("elsewhere", 5).affinity(10_800).node_port(30005).external_local())
        .slice("elsewhere", &Endpoint::all(&["c"]))
        .service(
            service("udp", 6)
                .ports(&[("dns", Protocol::Udp, 53)])
                .external_ips(&both("ext6"))
                .node_port(30053),
        );
    cluster.apply_slice("udp", ("dns", Protocol::Udp, 5353), &Endpoint::all(&["a"]));
    cluster
}
