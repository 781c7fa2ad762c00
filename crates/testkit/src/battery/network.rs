//! The addresses of the lab in one family, and objects with them.

use super::PORT;
use crate::objects::{self, AddressBook, Endpoint, EndpointSlice, Manifest, Port, Service};
use portway_model::{Family, Protocol};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The addresses of the lab in one family.
#[derive(Clone, Debug)]
pub struct LabNetwork {
    /// The family under test.
    pub family: Family,
    /// Pods by name.
    pub pods: BTreeMap<String, IpAddr>,
    /// Nodes in order.
    pub nodes: Vec<IpAddr>,
}

impl AddressBook for LabNetwork {
    fn family(&self) -> Family {
        self.family
    }

    fn address(&self, pod: &str) -> IpAddr {
        self.pods[pod]
    }

    /// A pod's name has the number of its node: `pod1a` runs on `node1`.
    fn node_of(&self, pod: &str) -> String {
        format!("node{}", &pod[3..4])
    }
}

impl LabNetwork {
    fn numbered(&self, v4: [u8; 3], v6: u16, n: u8) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::new(v4[0], v4[1], v4[2], n).into(),
            Family::V6 => Ipv6Addr::new(v6, 0, 0, 0, 0, 0, 0, n.into()).into(),
        }
    }

    /// The cluster IP with this number.
    pub fn cluster_ip(&self, n: u8) -> IpAddr {
        self.numbered([10, 96, 0], 0xfd96, n)
    }

    /// An external IP.
    pub fn external_ip(&self, n: u8) -> IpAddr {
        self.numbered([203, 0, 113], 0xfd11, n)
    }

    /// A load balancer's IP.
    pub fn load_balancer_ip(&self, n: u8) -> IpAddr {
        self.numbered([198, 51, 100], 0xfd12, n)
    }

    /// Port 80 of a cluster IP.
    pub fn at_cluster_ip(&self, n: u8) -> SocketAddr {
        SocketAddr::new(self.cluster_ip(n), 80)
    }

    /// A node port of the node with this number, from 1.
    pub fn node_port(&self, node: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.nodes[node - 1], port)
    }

    /// A Service with the cluster IP of this number, and port 80 by TCP.
    pub fn service(&self, name: &str, n: u8) -> Service {
        Service::new(name, &[self.cluster_ip(n)])
    }

    /// The slice of a Service with these endpoints, serving [`PORT`] by TCP and UDP.
    pub fn slice(&self, service: &str, endpoints: &[Endpoint]) -> Manifest {
        let ports = [("", Protocol::Tcp, PORT), ("", Protocol::Udp, PORT)];
        self.slice_of(service, service, &ports, endpoints)
    }

    /// A slice with a name and ports of its own.
    pub fn slice_of(
        &self,
        service: &str,
        name: &str,
        ports: &[Port<'_>],
        endpoints: &[Endpoint],
    ) -> Manifest {
        EndpointSlice::new(service, ports, endpoints).name(name).manifest(self)
    }

    /// The range of the lab's cluster IPs.
    pub fn service_cidr(&self) -> Manifest {
        objects::service_cidr(match self.family {
            Family::V4 => "10.96.0.0/24",
            Family::V6 => "fd96::/112",
        })
    }
}
