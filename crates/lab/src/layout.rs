//! The hosts of a lab and the links between them.
//!
//! ```text
//!   pod1a   pod1b        pod2a              each pod on its own veth, 10.244.<n>.10 and up
//!     └──┬──┘              │
//!      node1             node2   client1    192.168.50.11, .12, …; clients from .201
//!        └────── fabric ───┴────────┘       a bridge; its address 192.168.50.1 is a router that discards packets
//! ```
//!
//! Nodes forward packets, have routes to each other's pod networks, and send all other packets to the fabric, which
//! discards them: a packet to a Service that is not translated is lost, not refused. The default route of clients is
//! node 1, unless changed by [`LabHost::route_via`].

use crate::LabError;
use crate::host::{LabHost, Role, UPLINK, add_address};
use crate::namespace::Namespace;
use crate::plan;
use crate::reap::kill_processes_in;
use portway_netlink::route::{Change, LinkKind, NewLink, Peer, Route};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The fabric's bridge.
const BRIDGE: &str = "fabric";

/// The size of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of pods on each.
    pub pods_per_node: usize,
    /// Number of outside clients.
    pub clients: usize,
}

impl Layout {
    /// Builds the lab.
    pub fn build(self) -> Result<Lab, LabError> {
        self.check()?;
        static LABS: AtomicUsize = AtomicUsize::new(1);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let fabric = fabric(number)?;
        let mut lab = Lab { number, nodes: vec![], pods: vec![], clients: vec![], fabric };
        for n in 1..=self.nodes {
            lab.add_node(n)?;
        }
        lab.connect_pod_networks()?;
        for n in 1..=self.nodes {
            for _ in 0..self.pods_per_node {
                lab.connect_pod(n)?;
            }
        }
        for n in 1..=self.clients {
            lab.add_client(n)?;
        }
        // Waits once at the end: the kernel activates links in the background meanwhile. A bridge without ports stays
        // down.
        let bridge_has_ports = self.nodes + self.clients > 0;
        for host in lab.hosts().chain(bridge_has_ports.then_some(&lab.fabric)) {
            host.wait_until_ready()?;
        }
        Ok(lab)
    }

    fn check(self) -> Result<(), LabError> {
        let counts = [
            ("nodes", self.nodes, plan::NODES),
            ("pods on a node", self.pods_per_node, plan::PODS),
            ("clients", self.clients, plan::CLIENTS),
        ];
        match counts.into_iter().find(|(_, count, limit)| count > limit) {
            Some((objects, _, limit)) => Err(LabError::TooMany { objects, limit }),
            None => Ok(()),
        }
    }
}

/// A lab; its namespaces and processes are removed when it is dropped.
#[derive(Debug)]
pub struct Lab {
    number: usize,
    pods: Vec<LabHost>,
    clients: Vec<LabHost>,
    nodes: Vec<LabHost>,
    fabric: LabHost,
}

impl Lab {
    /// The n-th node, from 1.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn node(&self, n: usize) -> &LabHost {
        &self.nodes[n - 1]
    }

    /// The n-th outside client, from 1.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn client(&self, n: usize) -> &LabHost {
        &self.clients[n - 1]
    }

    /// The pod of this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pod(&self, name: &str) -> &LabHost {
        match self.pods.iter().find(|pod| pod.name() == name) {
            Some(pod) => pod,
            None => panic!("the lab has no pod {name}"),
        }
    }

    /// The nodes.
    pub fn nodes(&self) -> &[LabHost] {
        &self.nodes
    }

    /// The pods.
    pub fn pods(&self) -> &[LabHost] {
        &self.pods
    }

    /// The clients.
    pub fn clients(&self) -> &[LabHost] {
        &self.clients
    }

    /// All nodes, pods and clients.
    pub fn hosts(&self) -> impl Iterator<Item = &LabHost> {
        self.nodes.iter().chain(&self.pods).chain(&self.clients)
    }

    /// Adds a pod to the n-th node.
    pub fn add_pod(&mut self, n: usize) -> Result<&LabHost, LabError> {
        self.connect_pod(n)?;
        self.node(n).wait_until_ready()?;
        let pod = &self.pods[self.pods.len() - 1];
        pod.wait_until_ready()?;
        Ok(pod)
    }

    fn connect_pod(&mut self, n: usize) -> Result<(), LabError> {
        let k = self.pods.iter().filter(|pod| pod.role() == Role::Pod { node: n }).count();
        if k >= plan::PODS {
            return Err(LabError::TooMany { objects: "pods on a node", limit: plan::PODS });
        }
        let (ip4, ip6) = plan::pod(n, k);
        let pod = LabHost::new(plan::pod_name(n, k), self.number, Role::Pod { node: n }, (ip4, ip6))?;
        let node = self.node(n);
        let veth = format!("veth-{}", pod.name());
        connect(node, veth.clone(), None, &pod)?;
        let (gateway4, gateway6) = plan::as_networks(plan::gateway(n));
        let (pod4, pod6) = plan::as_networks((ip4, ip6));
        let link = node.link(&veth)?;
        node.change(&[
            add_address(link, gateway4),
            add_address(link, gateway6),
            Change::AddRoute(Route::on_link(pod4, link)),
            Change::AddRoute(Route::on_link(pod6, link)),
        ])?;
        pod.address(UPLINK, (pod4, pod6))?;
        pod.route_default(plan::gateway(n))?;
        self.pods.push(pod);
        Ok(())
    }

    fn add_node(&mut self, n: usize) -> Result<(), LabError> {
        let node = LabHost::new(format!("node{n}"), self.number, Role::Node(n), plan::node(n))?;
        self.attach(&node, plan::discarding_router())?;
        self.nodes.push(node);
        Ok(())
    }

    fn add_client(&mut self, n: usize) -> Result<(), LabError> {
        let client = LabHost::new(format!("client{n}"), self.number, Role::Client(n), plan::client(n))?;
        let router = if self.nodes.is_empty() { plan::discarding_router() } else { plan::node(1) };
        self.attach(&client, router)?;
        self.clients.push(client);
        Ok(())
    }

    /// Connects a host to the fabric.
    fn attach(&self, host: &LabHost, router: plan::Pair) -> Result<(), LabError> {
        let bridge = self.fabric.link(BRIDGE)?;
        connect(&self.fabric, host.name().to_owned(), Some(bridge), host)?;
        host.address(UPLINK, plan::with_fabric_prefix((host.ipv4(), host.ipv6())))?;
        host.route_default(router)
    }

    /// Adds routes on every node to the pod networks of all other nodes.
    fn connect_pod_networks(&self) -> Result<(), LabError> {
        for (i, node) in self.nodes.iter().enumerate() {
            let link = node.link(UPLINK)?;
            let mut changes = Vec::new();
            for n in (1..=self.nodes.len()).filter(|n| *n != i + 1) {
                let (net4, net6) = plan::pod_networks(n);
                let (ip4, ip6) = plan::node(n);
                changes.push(Change::AddRoute(Route::via(net4, ip4.into(), link)));
                changes.push(Change::AddRoute(Route::via(net6, ip6.into(), link)));
            }
            node.change(&changes)?;
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // One scan of all processes for all namespaces, rather than one for each.
        let inodes =
            self.hosts().map(LabHost::namespace).filter_map(Namespace::take_inode_to_clear).collect();
        kill_processes_in(&inodes);
    }
}

fn fabric(number: usize) -> Result<LabHost, LabError> {
    let fabric = LabHost::new("fabric".into(), number, Role::Fabric, plan::discarding_router())?;
    let (any4, any6) = plan::default_destinations();
    fabric.change(&[
        Change::AddLink(NewLink { name: BRIDGE.into(), kind: LinkKind::Bridge, up: true, master: None }),
        // Discards packets without an ICMP error.
        Change::AddRoute(Route::blackhole(any4)),
        Change::AddRoute(Route::blackhole(any6)),
    ])?;
    fabric.address(BRIDGE, plan::with_fabric_prefix(plan::discarding_router()))?;
    Ok(fabric)
}

/// Connects two hosts with a veth pair: its end in `host` has the name `name`, the other end is the uplink of `peer`.
fn connect(host: &LabHost, name: String, master: Option<u32>, peer: &LabHost) -> Result<(), LabError> {
    let end = Peer { name: UPLINK.into(), namespace: Some(peer.namespace().as_fd()) };
    host.change(&[Change::AddLink(NewLink { name, kind: LinkKind::Veth(end), up: true, master })])?;
    peer.change(&[Change::SetUp { link: peer.link(UPLINK)?, up: true }])
}
