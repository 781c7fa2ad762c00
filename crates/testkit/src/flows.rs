//! A UDP Service `dns`, and conntrack entries of flows to it.

use crate::cluster::{TestCluster, address, service};
use crate::objects::Endpoint;
use portway_model::{Family, Protocol};
use portway_netlink::conntrack::{Flow, Tuple, UDP};

/// A cluster with Service `dns`: UDP port 53 of `svc1`, and node port 30053.
pub fn dns_cluster(hosts: &[&str]) -> TestCluster {
    let service = service("dns", 1).ports(&[("dns", Protocol::Udp, 53)]).node_port(30053);
    let mut cluster = TestCluster::new().service(service);
    apply_dns(&mut cluster, hosts);
    cluster
}

/// Makes these hosts the endpoints of Service `dns`, at port 5353.
pub fn apply_dns(cluster: &mut TestCluster, hosts: &[&str]) {
    cluster.apply_slice("dns", ("dns", Protocol::Udp, 5353), &Endpoint::all(hosts));
}

/// A UDP flow of `client` to a frontend, translated to an endpoint.
pub fn flow(family: Family, frontend: (&str, u16), endpoint: (&str, u16)) -> Flow {
    let client = address(family, "client");
    let tuple = |source, source_port, destination, destination_port| Tuple {
        source,
        destination,
        protocol: UDP,
        source_port,
        destination_port,
    };
    Flow {
        original: tuple(client, 4000, address(family, frontend.0), frontend.1),
        reply: tuple(address(family, endpoint.0), endpoint.1, client, 4000),
        zone: 0,
        translated: true,
    }
}
