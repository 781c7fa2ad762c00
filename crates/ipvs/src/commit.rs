//! The boundary to the kernel: ipset, ipvs and addresses by netlink, and the order in which a transaction is written.

use crate::DEVICE;
use crate::diff::Transaction;
use crate::listing::RealServerState;
use crate::modules;
use crate::servers::{DRAINING_WEIGHT, Key, Server, address_family};
use crate::sets::Set;
use crate::sysctl::{self, SysctlOutcome};
use ipnet::IpNet;
use portway_dataplane::{IpvsSettings, Scheduler};
use portway_flows::Tracker;
use portway_model::{Family, Target};
use portway_netlink::conntrack::{Filter, Flow};
use portway_netlink::genl::Genl;
use portway_netlink::ipset::{Ipset, Member, NewSet, SetChange, SetInfo};
use portway_netlink::ipvs::{self, Change, Forwarding, VirtualServer};
use portway_netlink::route::{self, Address, Event, LinkKind, Monitor, NewLink, Rtnetlink};
use portway_netlink::{self as netlink, Failed, Protocol, Socket};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

/// The error of a kernel operation.
pub type Failure = netlink::Error;
/// The result of a kernel operation.
pub type KernelResult<T> = Result<T, Failure>;

/// The kernel operations that the mode needs. [`Netlink`] implements them for the real kernel.
pub trait Kernel: Tracker {
    /// All sets, without their members.
    fn sets(&mut self) -> KernelResult<Vec<SetInfo>>;
    /// The members of a set.
    fn members(&mut self, name: &str) -> KernelResult<Vec<Member>>;
    /// Creates a set; an existing set is left as it is.
    fn create_set(&mut self, set: &NewSet) -> KernelResult<()>;
    /// Adds and removes members. A failed change does not stop the others.
    fn change_sets(&mut self, changes: &[SetChange<'_>]) -> KernelResult<Vec<Failed>>;
    /// All virtual servers of a family.
    fn servers(&mut self, family: Family) -> KernelResult<Vec<VirtualServer>>;
    /// Whether a virtual server exists.
    fn has_server(&mut self, server: &ipvs::Key) -> KernelResult<bool>;
    /// The real servers of a virtual server.
    fn targets(&mut self, server: &ipvs::Key) -> KernelResult<HashMap<Target, RealServerState>>;
    /// Changes virtual and real servers. A failed change does not stop the others.
    fn change_servers(&mut self, changes: &[Change<'_>]) -> KernelResult<Vec<Failed>>;
    /// The index of `kube-ipvs0`, if it exists.
    fn device(&mut self) -> KernelResult<Option<u32>>;
    /// Creates `kube-ipvs0` and returns its index.
    fn create_device(&mut self) -> KernelResult<u32>;
    /// The addresses on a device, without link-local ones.
    fn addresses_on(&mut self, link: u32, family: Family) -> KernelResult<Vec<IpAddr>>;
    /// The node's addresses on other devices than `kube-ipvs0`, which node ports may use.
    fn node_addresses(&mut self, family: Family) -> KernelResult<BTreeSet<IpAddr>>;
    /// Adds addresses to a device or removes them. A failed change does not stop the others.
    fn change_addresses(&mut self, link: u32, add: bool, ips: &[IpAddr]) -> KernelResult<Vec<Failed>>;
    /// Changes of links and addresses since the last call; `None` if some notifications were lost.
    fn events(&mut self) -> Option<Vec<Event>>;
    /// Whether the kernel has a scheduler or can load it.
    fn has_scheduler(&mut self, scheduler: Scheduler) -> bool;
    /// The number of messages sent so far.
    fn sent(&self) -> u64;
    /// Sets the sysctls that the mode needs, and records their previous values in the alias of the device.
    fn set_sysctls(&mut self, link: u32, settings: &IpvsSettings) -> SysctlOutcome;
}

/// The kernel of this thread's network namespace.
#[derive(Debug)]
pub struct Netlink {
    family: Family,
    sets: Ipset,
    ipvs: Genl,
    route: Rtnetlink,
    monitor: Option<Monitor>,
    netfilter: Socket,
    /// The previous sysctl values, as last recorded.
    recorded: String,
}

impl Netlink {
    /// Opens the sockets. [`crate::modules::check`] provides the arguments and reports missing modules.
    pub fn open(family: Family, ipvs: Genl, sets: Ipset) -> KernelResult<Netlink> {
        let route = Rtnetlink::open()?;
        let monitor = Monitor::open(&[route.port()]);
        let monitor = monitor.inspect_err(|error| {
            tracing::warn!(%error, "cannot subscribe to address changes; changes by other processes are noticed only when all objects are compared");
        });
        let netfilter = Socket::open(Protocol::Netfilter)?;
        Ok(Netlink { family, sets, ipvs, route, monitor: monitor.ok(), netfilter, recorded: String::new() })
    }

    fn tracker(&mut self) -> portway_flows::Kernel<'_> {
        portway_flows::Kernel { socket: &mut self.netfilter, v6: self.family == Family::V6 }
    }
}

impl Kernel for Netlink {
    fn sets(&mut self) -> KernelResult<Vec<SetInfo>> {
        self.sets.names()
    }

    fn members(&mut self, name: &str) -> KernelResult<Vec<Member>> {
        self.sets.members(name)
    }

    fn create_set(&mut self, set: &NewSet) -> KernelResult<()> {
        self.sets.create(set).map(drop)
    }

    fn change_sets(&mut self, changes: &[SetChange<'_>]) -> KernelResult<Vec<Failed>> {
        self.sets.apply_all(changes)
    }

    fn servers(&mut self, family: Family) -> KernelResult<Vec<VirtualServer>> {
        let mut all = ipvs::services(&mut self.ipvs)?;
        all.retain(|server| server.family == address_family(family));
        Ok(all)
    }

    fn has_server(&mut self, server: &ipvs::Key) -> KernelResult<bool> {
        Ok(ipvs::service(&mut self.ipvs, server)?.is_some())
    }

    fn targets(&mut self, server: &ipvs::Key) -> KernelResult<HashMap<Target, RealServerState>> {
        let all = ipvs::servers(&mut self.ipvs, server)?;
        let targets = all.into_iter().map(|real| {
            let target = Target { ip: real.address, port: real.port };
            let by_nat = real.forwarding == Forwarding::Masquerade;
            (
                target,
                RealServerState { weight: real.weight, connections: real.active + real.inactive, by_nat },
            )
        });
        Ok(targets.collect())
    }

    fn change_servers(&mut self, changes: &[Change<'_>]) -> KernelResult<Vec<Failed>> {
        ipvs::apply_all(&mut self.ipvs, changes)
    }

    fn device(&mut self) -> KernelResult<Option<u32>> {
        Ok(self.route.link(DEVICE)?.map(|link| link.index))
    }

    fn create_device(&mut self) -> KernelResult<u32> {
        // Down, as with kube-proxy: its addresses are local addresses all the same, and no packet is sent through it.
        let new = NewLink { name: DEVICE.into(), kind: LinkKind::Dummy, up: false, master: None };
        match self.route.apply(&route::Change::AddLink(new)) {
            Err(e) if !e.is_exists() => return Err(e),
            _ => {}
        }
        self.device()?.ok_or_else(|| netlink::Error::NoAnswer(format!("create {DEVICE}")))
    }

    fn addresses_on(&mut self, link: u32, family: Family) -> KernelResult<Vec<IpAddr>> {
        let all = self.route.addresses_of(link, address_family(family))?;
        Ok(all.into_iter().map(|a| a.net.addr()).filter(|ip| !is_link_local(*ip)).collect())
    }

    fn node_addresses(&mut self, family: Family) -> KernelResult<BTreeSet<IpAddr>> {
        let device = self.device()?;
        let all = self.route.addresses()?.into_iter().filter(|a| Some(a.link) != device);
        let own = all.map(|a| a.net.addr()).filter(|ip| Family::of(*ip) == family && is_node_address(*ip));
        Ok(own.collect())
    }

    fn change_addresses(&mut self, link: u32, add: bool, ips: &[IpAddr]) -> KernelResult<Vec<Failed>> {
        let change = |ip: &IpAddr| {
            // Deprecated, so that the kernel does not select it as a source address.
            let address = Address::new(link, IpNet::from(*ip)).deprecated();
            if add { route::Change::AddAddress(address) } else { route::Change::DeleteAddress(address) }
        };
        let changes: Vec<route::Change<'_>> = ips.iter().map(change).collect();
        self.route.apply_all(&changes)
    }

    fn events(&mut self) -> Option<Vec<Event>> {
        let Some(monitor) = &mut self.monitor else { return Some(Vec::new()) };
        monitor.wait_for(std::time::Duration::ZERO).ok()
    }

    fn has_scheduler(&mut self, scheduler: Scheduler) -> bool {
        // If the probe fails, the change that uses the scheduler reports the error.
        modules::has_scheduler(&mut self.ipvs, scheduler).unwrap_or(true)
    }

    fn sent(&self) -> u64 {
        self.sets.sent() + self.ipvs.sent() + self.route.sent() + self.netfilter.sent()
    }

    fn set_sysctls(&mut self, link: u32, settings: &IpvsSettings) -> SysctlOutcome {
        match self.family {
            // The sysctls of ipvs apply to both families and are set with IPv4, which is always present.
            Family::V4 => sysctl::apply(&mut self.route, &mut self.ipvs, link, settings, &mut self.recorded),
            Family::V6 => sysctl::check_v6(),
        }
    }
}

impl Tracker for Netlink {
    fn flows(&mut self, filter: Filter) -> KernelResult<Vec<Flow>> {
        self.tracker().flows(filter)
    }

    fn delete_flow(&mut self, flow: &Flow) -> KernelResult<bool> {
        self.tracker().delete_flow(flow)
    }

    fn addresses(&mut self) -> KernelResult<Vec<IpAddr>> {
        self.tracker().addresses()
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether node ports may use an address of this node: neither loopback nor link-local.
pub fn is_node_address(ip: IpAddr) -> bool {
    !ip.is_loopback() && !is_link_local(ip)
}

/// A change that the kernel refused.
#[derive(Debug)]
pub struct Refusal {
    /// The object of the change.
    pub object: Object,
    /// The operation and the reason.
    pub error: Failure,
}

/// The object of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// Members of a set.
    Set(Set),
    /// A virtual server.
    Server(Key),
    /// A real server of a virtual server.
    Target(Key, Target),
    /// A virtual server whose scheduler this kernel does not have.
    Scheduler(Key),
    /// An address on `kube-ipvs0`.
    Address(IpAddr),
}

/// Writes the first changes of a transaction, which add members to sets, and takes them out of it.
pub fn add_members(
    kernel: &mut impl Kernel,
    family: Family,
    tx: &mut Transaction,
) -> KernelResult<Vec<Refusal>> {
    let mut refused = Vec::new();
    let members = std::mem::take(&mut tx.add_members);
    change_sets(kernel, family, &members, add, &mut refused)?;
    Ok(refused)
}

/// Writes a transaction in the order of [`crate::diff`]. `refused` are changes that [`add_members`] could not make. A
/// refused change does not stop the others, except those that would cause resets or lose track of an object without it.
pub fn commit(
    kernel: &mut impl Kernel,
    family: Family,
    device: u32,
    tx: &Transaction,
    mut refused: Vec<Refusal>,
) -> KernelResult<Vec<Refusal>> {
    change_sets(kernel, family, &tx.add_members, add, &mut refused)?;
    add_servers(kernel, family, tx, &mut refused)?;
    let bind = bindable(tx, &refused);
    for (add, ips) in [(true, &bind), (false, &tx.unbind)] {
        if !ips.is_empty() {
            let failed = kernel.change_addresses(device, add, ips)?;
            // An address that exists already, or is gone already, needs no change.
            let is_failure = |f: &Failed| if add { !f.error.is_exists() } else { !is_no_address(&f.error) };
            let refusal = |f: Failed| Refusal { object: Object::Address(ips[f.index]), error: f.error };
            refused.extend(failed.into_iter().filter(is_failure).map(refusal));
        }
    }
    let removed = |blocking: bool| -> HashMap<Set, Vec<Member>> {
        let members = tx.remove_members.iter().filter(|(set, _)| set.blocks() == blocking);
        members.map(|(set, members)| (*set, members.clone())).collect()
    };
    // A frontend stays rejected until its virtual server has endpoints.
    if !refused
        .iter()
        .any(|r| matches!(r.object, Object::Server(_) | Object::Target(..) | Object::Scheduler(_)))
    {
        change_sets(kernel, family, &removed(true), remove, &mut refused)?;
    }
    remove_servers(kernel, family, tx, &mut refused)?;
    // A virtual server that could not be removed is recognised by its members.
    let is_left =
        |r: &Refusal| matches!(r.object, Object::Server(_) | Object::Target(..) | Object::Address(_));
    if !block_failed(&refused) && !refused.iter().any(is_left) {
        change_sets(kernel, family, &removed(false), remove, &mut refused)?;
    }
    Ok(refused)
}

fn add<'a>(set: &'a str, members: &'a [Member]) -> SetChange<'a> {
    SetChange::Add { set, members }
}

fn remove<'a>(set: &'a str, members: &'a [Member]) -> SetChange<'a> {
    SetChange::Remove { set, members }
}

/// Whether frontends could not be added to or removed from a set that blocks them.
fn block_failed(refused: &[Refusal]) -> bool {
    refused.iter().any(|r| matches!(r.object, Object::Set(set) if set.blocks()))
}

/// The addresses that may be added despite the refused changes. The node would reset connections to an address whose
/// virtual server could not be added, or whose frontend could not be added to the set that rejects it.
fn bindable(tx: &Transaction, refused: &[Refusal]) -> Vec<IpAddr> {
    if block_failed(refused) {
        return Vec::new();
    }
    let server = |r: &Refusal| match r.object {
        Object::Server(key) | Object::Target(key, _) | Object::Scheduler(key) => key.ip(),
        _ => None,
    };
    let unserved: Vec<IpAddr> = refused.iter().filter_map(server).collect();
    tx.bind.iter().copied().filter(|ip| !unserved.contains(ip)).collect()
}

pub(crate) fn is_no_address(error: &Failure) -> bool {
    error.errno() == Some(rustix::io::Errno::ADDRNOTAVAIL.raw_os_error())
}

fn change_sets<'t>(
    kernel: &mut impl Kernel,
    family: Family,
    members: impl IntoIterator<Item = (&'t Set, &'t Vec<Member>)>,
    change: for<'a> fn(&'a str, &'a [Member]) -> SetChange<'a>,
    refused: &mut Vec<Refusal>,
) -> KernelResult<()> {
    let (sets, changes): (Vec<Set>, Vec<SetChange<'_>>) =
        members.into_iter().map(|(set, members)| (*set, change(set.name(family), members))).unzip();
    if !changes.is_empty() {
        let refusal = |f: Failed| Refusal { object: Object::Set(sets[f.index]), error: f.error };
        refused.extend(kernel.change_sets(&changes)?.into_iter().map(refusal));
    }
    Ok(())
}

fn socket_addr(target: &Target) -> SocketAddr {
    SocketAddr::new(target.ip, target.port)
}

/// Adds and changes virtual servers and real servers.
fn add_servers(
    kernel: &mut impl Kernel,
    family: Family,
    tx: &Transaction,
    refused: &mut Vec<Refusal>,
) -> KernelResult<()> {
    let mut keys = Vec::new();
    let mut changes = Vec::with_capacity(tx.add_servers.iter().map(|(_, s)| 1 + s.targets.len()).sum());
    let mut push = |key: Key, change: Change<'static>| {
        keys.push(key);
        changes.push(change);
    };
    for (key, server) in &tx.add_servers {
        let (service, options) = (key.wire(family), server.options(family));
        push(*key, Change::AddService { service, options });
        for (target, weight) in &server.targets {
            push(*key, Change::AddServer { service, server: socket_addr(target), weight: *weight });
        }
    }
    for (key, target, weight) in &tx.add_targets {
        push(
            *key,
            Change::AddServer { service: key.wire(family), server: socket_addr(target), weight: *weight },
        );
    }
    for (key, target, weight) in &tx.set_weights {
        push(
            *key,
            Change::SetServer { service: key.wire(family), server: socket_addr(target), weight: *weight },
        );
    }
    for (key, server) in &tx.edit_servers {
        let options = Server::options(server, family);
        push(*key, Change::SetService { service: key.wire(family), options });
    }
    apply(kernel, &keys, &changes, refused)
}

/// Drains and removes real servers, and removes virtual servers.
fn remove_servers(
    kernel: &mut impl Kernel,
    family: Family,
    tx: &Transaction,
    refused: &mut Vec<Refusal>,
) -> KernelResult<()> {
    let mut keys = Vec::new();
    let mut changes = Vec::new();
    if block_failed(refused) {
        // Packets to a removed virtual server would not be rejected by a rule.
        return Ok(());
    }
    for (key, target) in &tx.drain_targets {
        let (service, server) = (key.wire(family), socket_addr(target));
        keys.push(*key);
        changes.push(Change::SetServer { service, server, weight: DRAINING_WEIGHT });
    }
    for (key, target) in &tx.remove_targets {
        keys.push(*key);
        changes.push(Change::DeleteServer { service: key.wire(family), server: socket_addr(target) });
    }
    let stays = |ip: IpAddr| refused.iter().any(|r| r.object == Object::Address(ip));
    for key in tx.remove_servers.iter().filter(|key| !key.ip().is_some_and(stays)) {
        keys.push(*key);
        changes.push(Change::DeleteService { service: key.wire(family) });
    }
    apply(kernel, &keys, &changes, refused)
}

fn apply(
    kernel: &mut impl Kernel,
    keys: &[Key],
    changes: &[Change<'_>],
    refused: &mut Vec<Refusal>,
) -> KernelResult<()> {
    if changes.is_empty() {
        return Ok(());
    }
    for failed in kernel.change_servers(changes)? {
        let change = &changes[failed.index];
        let gone = change.is_no_server(&failed.error) || ipvs::is_no_service(&failed.error);
        let is_removal = matches!(change, Change::DeleteServer { .. } | Change::DeleteService { .. });
        let key = keys[failed.index];
        // A real server cannot be added to a virtual server that was refused.
        let is_consequence =
            |r: &Refusal| matches!(r.object, Object::Server(k) | Object::Scheduler(k) if k == key);
        if gone && (is_removal || refused.iter().any(is_consequence)) {
            continue;
        }
        let object = match change {
            _ if change.is_no_scheduler(&failed.error) => Object::Scheduler(key),
            Change::AddServer { server, .. } | Change::SetServer { server, .. } => {
                Object::Target(key, Target { ip: server.ip(), port: server.port() })
            }
            _ => Object::Server(key),
        };
        refused.push(Refusal { object, error: failed.error });
    }
    Ok(())
}
