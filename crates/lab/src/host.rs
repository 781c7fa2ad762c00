//! A host of the lab: a node, a pod or an outside client. Each is a network namespace with one uplink, `eth0`.

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

/// The loopback link, which every network namespace is born with.
const LOOPBACK: u32 = 1;
/// How long a cable may take to carry packets.
const PATIENCE: Duration = Duration::from_secs(5);
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
    // Dropped in this order: servers go before the namespace they are in.
    servers: Mutex<Vec<Server>>,
    network: Mutex<Rtnetlink>,
    namespace: Namespace,
    name: String,
    role: Role,
    addresses: Pair,
}

impl LabHost {
    /// Makes the host, with only its loopback link.
    pub(crate) fn new(name: String, lab: usize, role: Role, addresses: Pair) -> Result<LabHost, LabError> {
        // The first lab of a process, mostly the only one, has plain names.
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

    /// One of its ports, in each family, IPv4 first.
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

    /// Serves under its own name on these ports, in both families, until it is told to stop.
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
    pub fn cut(&self) -> Result<(), LabError> {
        let link = self.link(UPLINK)?;
        self.change(&[Change::DeleteLink { link }])
    }

    /// Adds addresses to a link.
    pub(crate) fn address(&self, link: &str, (v4, v6): Nets) -> Result<(), LabError> {
        let link = self.link(link)?;
        self.change(&[v4, v6].map(|net| add_address(link, net)))
    }

    /// Sets the default routes. The router need not be in the network of our own address.
    pub(crate) fn route_default(&self, (v4, v6): Pair) -> Result<(), LabError> {
        let link = self.link(UPLINK)?;
        let (any4, any6) = plan::anywhere();
        self.change(&[
            Change::ReplaceRoute(Route::via(any4, v4.into(), link).onlink()),
            Change::ReplaceRoute(Route::via(any6, v6.into(), link).onlink()),
        ])
    }

    /// Waits until its links carry packets and its addresses are heard. The kernel does both in the background: it
    /// activates a link some time after both its ends are up, and joins the multicast group on which neighbours
    /// ask for an IPv6 address some time after that was added. What comes in between is lost, and the first packet of
    /// a test would wait a second for its repetition.
    pub(crate) fn wait_until_ready(&self) -> Result<(), LabError> {
        eventually(PATIENCE, || self.is_ready()).map_err(|gave_up| {
            LabError::system(format!("get {} connected", self.name), io::Error::other(gave_up))
        })?;
        // A link's state is set first, then it is activated, both under the lock that every change takes: once
        // this one is made, the other is as well.
        self.change(&[Change::SetUp { link: LOOPBACK, up: true }])
    }

    fn is_ready(&self) -> Result<(), String> {
        let mut network = lock(&self.network);
        let links = network.links().map_err(|e| e.to_string())?;
        // Dummy links, which an agent may have made to hold addresses, need not be operational.
        let mut cables = links.iter().filter(|l| matches!(l.kind.as_deref(), Some("veth" | "bridge")));
        if let Some(link) = cables.find(|link| !link.operational) {
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
                let what = format!("find link {name} in {}", self.name);
                Err(LabError::system(what, rustix::io::Errno::NODEV))
            }
        }
    }
}

impl AsRef<Namespace> for LabHost {
    fn as_ref(&self) -> &Namespace {
        &self.namespace
    }
}

/// Detection of duplicates is off in the whole namespace; asking for that once more here would hide when the
/// kernel is done with the address.
pub(crate) fn add_address(link: u32, net: IpNet) -> Change<'static> {
    Change::AddAddress(Address { no_dad: false, ..Address::new(link, net) })
}

/// A panic elsewhere leaves these values whole: they are only ever replaced as one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
