//! A host of the lab: a node, a pod or a client outside of the cluster. Each is a network namespace with one uplink,
//! `eth0`.

use crate::namespace::Namespace;
use crate::plan::{self, Nets, Pair};
use crate::server::{Port, Server};
use crate::{LabError, Process, eventually, sysctl};
use ipnet::IpNet;
use portway_netlink::route::{Address, Change, Route, Rtnetlink};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The index of the loopback link, which every network namespace has.
const LOOPBACK: u32 = 1;
/// How long links and addresses may take to become usable.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// The uplink of every host.
pub(crate) const UPLINK: &str = "eth0";

/// The role of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The n-th node, from 1.
    Node(usize),
    /// A pod on the n-th node.
    Pod {
        /// The node's number.
        node: usize,
    },
    /// The n-th outside client, from 1.
    Client(usize),
    /// The bridge between nodes and clients.
    Fabric,
}

/// A host of the lab.
#[derive(Debug)]
pub struct LabHost {
    // Dropped in this order: servers stop before their namespace is removed.
    servers: Mutex<Vec<Server>>,
    network: Mutex<Rtnetlink>,
    namespace: Namespace,
    name: String,
    role: Role,
    addresses: Pair,
}

impl LabHost {
    /// Creates the host, with only its loopback link.
    pub(crate) fn new(name: String, lab: usize, role: Role, addresses: Pair) -> Result<LabHost, LabError> {
        // Names in the first lab of a process, which mostly is the only one, have no number of the lab.
        let unique = if lab == 1 { name.clone() } else { format!("{lab}.{name}") };
        let forwards = matches!(role, Role::Node(_));
        let (namespace, network) = Namespace::with(&unique, || {
            sysctl::set_up(forwards)?;
            Rtnetlink::open().map_err(|source| LabError::Network { host: unique.clone(), source })
        })?;
        let servers = Mutex::default();
        let host = LabHost { servers, network: Mutex::new(network), namespace, name, role, addresses };
        host.change(&[Change::SetUp { link: LOOPBACK, up: true }])?;
        Ok(host)
    }

    /// Its name: `node1`, `pod1a`, `client1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its IPv4 address.
    pub fn ipv4(&self) -> Ipv4Addr {
        self.addresses.0
    }

    /// Its IPv6 address.
    pub fn ipv6(&self) -> Ipv6Addr {
        self.addresses.1
    }

    /// Both its addresses, IPv4 first.
    pub fn ips(&self) -> [IpAddr; 2] {
        [self.ipv4().into(), self.ipv6().into()]
    }

    /// Its addresses with a port, IPv4 first.
    pub fn sockets(&self, port: u16) -> [SocketAddr; 2] {
        self.ips().map(|ip| SocketAddr::new(ip, port))
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Starts a process in it.
    pub fn spawn(&self, command: Command) -> Result<Process, LabError> {
        self.namespace.spawn(command)
    }

    /// Serves on these ports, in both families, until [`LabHost::stop_servers`]. The server's name is that of the host.
    pub fn serve(&self, ports: &[Port]) -> Result<(), LabError> {
        let server = Server::start(&self.namespace, &self.name, ports)?;
        lock(&self.servers).push(server);
        Ok(())
    }

    /// Stops its servers: connections are refused from now on.
    pub fn stop_servers(&self) {
        lock(&self.servers).clear();
    }

    /// Adds an address to its uplink.
    pub fn add_address(&self, net: IpNet) -> Result<(), LabError> {
        let link = self.link(UPLINK)?;
        self.change(&[add_address(link, net)])?;
        self.wait_until_ready()
    }

    /// Removes an address from its uplink.
    pub fn remove_address(&self, net: IpNet) -> Result<(), LabError> {
        let link = self.link(UPLINK)?;
        self.change(&[Change::DeleteAddress(Address::new(link, net))])
    }

    /// Makes `router` its default route.
    pub fn route_via(&self, router: &LabHost) -> Result<(), LabError> {
        self.route_default(router.addresses)
    }

    /// Deletes its uplink: packets to it are lost, as when a machine loses power.
    pub fn delete_uplink(&self) -> Result<(), LabError> {
        let link = self.link(UPLINK)?;
        self.change(&[Change::DeleteLink { link }])
    }

    /// Adds addresses to a link.
    pub(crate) fn address(&self, link: &str, (v4, v6): Nets) -> Result<(), LabError> {
        let link = self.link(link)?;
        self.change(&[v4, v6].map(|net| add_address(link, net)))
    }

    /// Sets the default routes. The router need not be in the network of the host's own address.
    pub(crate) fn route_default(&self, (v4, v6): Pair) -> Result<(), LabError> {
        let link = self.link(UPLINK)?;
        let (any4, any6) = plan::default_destinations();
        self.change(&[
            Change::ReplaceRoute(Route::via(any4, v4.into(), link).onlink()),
            Change::ReplaceRoute(Route::via(any6, v6.into(), link).onlink()),
        ])
    }

    /// Waits until its links are operational and its addresses are usable. The kernel does both in the background: it
    /// activates a link some time after both its ends are up, and joins the multicast group for neighbour solicitations
    /// of an IPv6 address some time after the address was added. Packets in between are lost, and the first packet of a
    /// test would be retransmitted after a second.
    pub(crate) fn wait_until_ready(&self) -> Result<(), LabError> {
        eventually(READY_TIMEOUT, || self.is_ready()).map_err(|gave_up| {
            LabError::system(format!("connect {}", self.name), io::Error::other(gave_up))
        })?;
        // The kernel sets a link's state and then activates it, both under the lock that every change takes: after this
        // change, activation is complete as well.
        self.change(&[Change::SetUp { link: LOOPBACK, up: true }])
    }

    fn is_ready(&self) -> Result<(), String> {
        let mut network = lock(&self.network);
        let links = network.links().map_err(|e| e.to_string())?;
        // Dummy links, which an agent may have added for addresses, need not be operational.
        let mut veths_and_bridges =
            links.iter().filter(|l| matches!(l.kind.as_deref(), Some("veth" | "bridge")));
        if let Some(link) = veths_and_bridges.find(|link| !link.operational) {
            return Err(format!("{} is not operational", link.name));
        }
        match network.addresses().map_err(|e| e.to_string())?.iter().find(|a| a.tentative) {
            Some(address) => Err(format!("{} is tentative", address.net)),
            None => Ok(()),
        }
    }

    /// Changes its network.
    pub(crate) fn change(&self, changes: &[Change<'_>]) -> Result<(), LabError> {
        let refused = |source| LabError::Network { host: self.name.clone(), source };
        let failed = lock(&self.network).apply_all(changes).map_err(refused)?;
        failed.into_iter().next().map_or(Ok(()), |first| Err(refused(first.error)))
    }

    /// The index of one of its links.
    pub(crate) fn link(&self, name: &str) -> Result<u32, LabError> {
        let found = lock(&self.network).link(name);
        match found.map_err(|source| LabError::Network { host: self.name.clone(), source })? {
            Some(link) => Ok(link.index),
            None => {
                let operation = format!("find link {name} in {}", self.name);
                Err(LabError::system(operation, rustix::io::Errno::NODEV))
            }
        }
    }
}

impl AsRef<Namespace> for LabHost {
    fn as_ref(&self) -> &Namespace {
        &self.namespace
    }
}

/// Duplicate address detection is off in the whole namespace. It is not turned off for the address too, because the
/// address would then not be listed as tentative until the kernel has configured it.
pub(crate) fn add_address(link: u32, net: IpNet) -> Change<'static> {
    Change::AddAddress(Address { no_dad: false, ..Address::new(link, net) })
}

/// A panic while a value is locked leaves it consistent, so a poisoned lock can be used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
