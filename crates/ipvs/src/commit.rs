//! The door to the kernel: three conversations by netlink, in the order that a transaction asks for.

use crate::DEVICE;
use crate::diff::Transaction;
use crate::listing::Behind;
use crate::modules;
use crate::servers::{DRAINED, Key, Server, number};
use crate::sets::Set;
use crate::sysctl::{self, Prepared};
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

/// Why something could not be done.
pub type Failure = netlink::Error;
/// What the kernel answered.
pub type Answer<T> = Result<T, Failure>;

/// What the mode needs from a kernel. The real one is [`Netlink`].
pub trait Kernel: Tracker {
    /// All sets, without their members.
    fn sets(&mut self) -> Answer<Vec<SetInfo>>;
    /// The members of a set.
    fn members(&mut self, name: &str) -> Answer<Vec<Member>>;
    /// Makes a set; one that is there stays as it is.
    fn make_set(&mut self, set: &NewSet) -> Answer<()>;
    /// Changes what is in sets, and goes on after what fails.
    fn change_sets(&mut self, changes: &[SetChange<'_>]) -> Answer<Vec<Failed>>;
    /// All virtual servers of a family.
    fn servers(&mut self, family: Family) -> Answer<Vec<VirtualServer>>;
    /// Whether there is one.
    fn has_server(&mut self, server: &ipvs::Key) -> Answer<bool>;
    /// Those behind one.
    fn targets(&mut self, server: &ipvs::Key) -> Answer<HashMap<Target, Behind>>;
    /// Changes servers, and goes on after what fails.
    fn change_servers(&mut self, changes: &[Change<'_>]) -> Answer<Vec<Failed>>;
    /// The number of our device, if it is there.
    fn device(&mut self) -> Answer<Option<u32>>;
    /// Makes it.
    fn make_device(&mut self) -> Answer<u32>;
    /// The addresses on a device.
    fn addresses_on(&mut self, link: u32, family: Family) -> Answer<Vec<IpAddr>>;
    /// The addresses that this machine has anyway, where node ports may answer.
    fn own_addresses(&mut self, family: Family) -> Answer<BTreeSet<IpAddr>>;
    /// Puts addresses on a device or takes them off, and goes on after what fails.
    fn change_addresses(&mut self, link: u32, add: bool, ips: &[IpAddr]) -> Answer<Vec<Failed>>;
    /// What happened to links and addresses, by others, since this was last asked; none if some of it was lost.
    fn events(&mut self) -> Option<Vec<Event>>;
    /// Whether there is a scheduler, or it can be loaded.
    fn has_scheduler(&mut self, scheduler: Scheduler) -> bool;
    /// How many messages were sent so far.
    fn sent(&self) -> u64;
    /// Sets what the mode needs of the kernel's settings; what was there before is written on our device.
    fn prepare(&mut self, link: u32, settings: &IpvsSettings) -> Prepared;
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
    /// What we wrote on our device.
    noted: String,
}

impl Netlink {
    /// Opens it; none of its parts may be missing ([`crate::modules::check`] says which is).
    pub fn open(family: Family, ipvs: Genl, sets: Ipset) -> Answer<Netlink> {
        let route = Rtnetlink::open()?;
        let monitor = Monitor::open(&[route.port()]);
        let monitor = monitor.inspect_err(|error| {
            tracing::warn!(%error, "changes of addresses by others are noticed late");
        });
        let netfilter = Socket::open(Protocol::Netfilter)?;
        Ok(Netlink { family, sets, ipvs, route, monitor: monitor.ok(), netfilter, noted: String::new() })
    }

    fn tracker(&mut self) -> portway_flows::Kernel<'_> {
        portway_flows::Kernel { socket: &mut self.netfilter, v6: self.family == Family::V6 }
    }
}

impl Kernel for Netlink {
    fn sets(&mut self) -> Answer<Vec<SetInfo>> {
        self.sets.names()
    }

    fn members(&mut self, name: &str) -> Answer<Vec<Member>> {
        self.sets.members(name)
    }

    fn make_set(&mut self, set: &NewSet) -> Answer<()> {
        self.sets.create(set).map(drop)
    }

    fn change_sets(&mut self, changes: &[SetChange<'_>]) -> Answer<Vec<Failed>> {
        self.sets.apply_all(changes)
    }

    fn servers(&mut self, family: Family) -> Answer<Vec<VirtualServer>> {
        let mut all = ipvs::services(&mut self.ipvs)?;
        all.retain(|server| server.family == number(family));
        Ok(all)
    }

    fn has_server(&mut self, server: &ipvs::Key) -> Answer<bool> {
        Ok(ipvs::service(&mut self.ipvs, server)?.is_some())
    }

    fn targets(&mut self, server: &ipvs::Key) -> Answer<HashMap<Target, Behind>> {
        let all = ipvs::servers(&mut self.ipvs, server)?;
        let behind = all.into_iter().map(|real| {
            let target = Target { ip: real.address, port: real.port };
            let by_nat = real.forwarding == Forwarding::Masquerade;
            (target, Behind { share: real.weight, connections: real.active + real.inactive, by_nat })
        });
        Ok(behind.collect())
    }

    fn change_servers(&mut self, changes: &[Change<'_>]) -> Answer<Vec<Failed>> {
        ipvs::apply_all(&mut self.ipvs, changes)
    }

    fn device(&mut self) -> Answer<Option<u32>> {
        Ok(self.route.link(DEVICE)?.map(|link| link.index))
    }

    fn make_device(&mut self) -> Answer<u32> {
        // Down, as kube-proxy has it: its addresses are this machine's all the same, and no packet is sent through it.
        let new = NewLink { name: DEVICE.into(), kind: LinkKind::Dummy, up: false, master: None };
        match self.route.apply(&route::Change::AddLink(new)) {
            Err(e) if !e.is_exists() => return Err(e),
            _ => {}
        }
        self.device()?.ok_or_else(|| netlink::Error::NoAnswer(format!("make {DEVICE}")))
    }

    fn addresses_on(&mut self, link: u32, family: Family) -> Answer<Vec<IpAddr>> {
        let all = self.route.addresses_of(link, number(family))?;
        let meant = |ip: &IpAddr| !is_link_local(*ip);
        Ok(all.into_iter().map(|a| a.net.addr()).filter(meant).collect())
    }

    fn own_addresses(&mut self, family: Family) -> Answer<BTreeSet<IpAddr>> {
        let device = self.device()?;
        let all = self.route.addresses()?.into_iter().filter(|a| Some(a.link) != device);
        let own = all.map(|a| a.net.addr()).filter(|ip| Family::of(*ip) == family && is_a_nodes(*ip));
        Ok(own.collect())
    }

    fn change_addresses(&mut self, link: u32, add: bool, ips: &[IpAddr]) -> Answer<Vec<Failed>> {
        let change = |ip: &IpAddr| {
            // Nothing is to leave with it, which the kernel might otherwise think nearest to where a packet goes.
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
        // If we cannot even ask, the change itself will say why.
        modules::has_scheduler(&mut self.ipvs, scheduler).unwrap_or(true)
    }

    fn sent(&self) -> u64 {
        self.sets.sent() + self.ipvs.sent() + self.route.sent() + self.netfilter.sent()
    }

    fn prepare(&mut self, link: u32, settings: &IpvsSettings) -> Prepared {
        match self.family {
            // Those of both families are set with IPv4's, which is always there.
            Family::V4 => sysctl::prepare(&mut self.route, &mut self.ipvs, link, settings, &mut self.noted),
            Family::V6 => sysctl::check_v6(),
        }
    }
}

impl Tracker for Netlink {
    fn flows(&mut self, filter: Filter) -> Answer<Vec<Flow>> {
        self.tracker().flows(filter)
    }

    fn delete_flow(&mut self, flow: &Flow) -> Answer<bool> {
        self.tracker().delete_flow(flow)
    }

    fn addresses(&mut self) -> Answer<Vec<IpAddr>> {
        self.tracker().addresses()
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether a node port may answer at an address that this machine has.
pub fn is_a_nodes(ip: IpAddr) -> bool {
    !ip.is_loopback() && !is_link_local(ip)
}

/// A change that the kernel refused.
#[derive(Debug)]
pub struct Refusal {
    /// What it was about.
    pub about: About,
    /// Which change, and why.
    pub error: Failure,
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// What is in a set.
    Set(Set),
    /// A server.
    Server(Key),
    /// One behind it.
    Target(Key, Target),
    /// A server whose scheduler this kernel does not have.
    Scheduler(Key),
    /// An address.
    Address(IpAddr),
}

/// Makes the first of a transaction's changes: what comes into sets. They are no longer in it afterwards.
pub fn fill(kernel: &mut impl Kernel, family: Family, tx: &mut Transaction) -> Answer<Vec<Refusal>> {
    let mut refused = Vec::new();
    let members = std::mem::take(&mut tx.add);
    change_sets(kernel, family, &members, add, &mut refused)?;
    Ok(refused)
}

/// Makes a transaction's changes, from top to bottom, after those that were `refused` before. What fails does not keep the
/// rest from being done.
pub fn commit(
    kernel: &mut impl Kernel,
    family: Family,
    device: u32,
    tx: &Transaction,
    mut refused: Vec<Refusal>,
) -> Answer<Vec<Refusal>> {
    change_sets(kernel, family, &tx.add, add, &mut refused)?;
    servers(kernel, family, tx, &mut refused)?;
    let bind = bindable(tx, &refused);
    for (add, ips) in [(true, &bind), (false, &tx.unbind)] {
        if !ips.is_empty() {
            let failed = kernel.change_addresses(device, add, ips)?;
            // What is so already is as it should be.
            let wrong = |f: &Failed| if add { !f.error.is_exists() } else { !is_no_address(&f.error) };
            let refusal = |f: Failed| Refusal { about: About::Address(ips[f.index]), error: f.error };
            refused.extend(failed.into_iter().filter(wrong).map(refusal));
        }
    }
    let of = |refuses: bool| -> HashMap<Set, Vec<Member>> {
        let those = tx.remove.iter().filter(|(set, _)| set.refuses() == refuses);
        those.map(|(set, members)| (*set, members.clone())).collect()
    };
    // A refused frontend stays refused until it has a server.
    if !refused.iter().any(|r| matches!(r.about, About::Server(_) | About::Target(..) | About::Scheduler(_)))
    {
        change_sets(kernel, family, &of(true), remove, &mut refused)?;
    }
    leavers(kernel, family, tx, &mut refused)?;
    // The sets are what a server that is left is known by.
    let left = |r: &Refusal| matches!(r.about, About::Server(_) | About::Target(..) | About::Address(_));
    if !is_unrefused(&refused) && !refused.iter().any(left) {
        change_sets(kernel, family, &of(false), remove, &mut refused)?;
    }
    Ok(refused)
}

fn add<'a>(set: &'a str, members: &'a [Member]) -> SetChange<'a> {
    SetChange::Add { set, members }
}

fn remove<'a>(set: &'a str, members: &'a [Member]) -> SetChange<'a> {
    SetChange::Remove { set, members }
}

/// Whether something that should be refused is not.
fn is_unrefused(refused: &[Refusal]) -> bool {
    refused.iter().any(|r| matches!(r.about, About::Set(set) if set.refuses()))
}

/// The addresses that may come after what was refused: one whose server could not be made, or which a rule should refuse
/// and does not know, would answer with a reset.
fn bindable(tx: &Transaction, refused: &[Refusal]) -> Vec<IpAddr> {
    if is_unrefused(refused) {
        return Vec::new();
    }
    let server = |r: &Refusal| match r.about {
        About::Server(key) | About::Target(key, _) | About::Scheduler(key) => key.ip(),
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
) -> Answer<()> {
    let (sets, changes): (Vec<Set>, Vec<SetChange<'_>>) =
        members.into_iter().map(|(set, members)| (*set, change(set.name(family), members))).unzip();
    if !changes.is_empty() {
        let refusal = |f: Failed| Refusal { about: About::Set(sets[f.index]), error: f.error };
        refused.extend(kernel.change_sets(&changes)?.into_iter().map(refusal));
    }
    Ok(())
}

fn socket(target: &Target) -> SocketAddr {
    SocketAddr::new(target.ip, target.port)
}

/// Servers and endpoints that come.
fn servers(
    kernel: &mut impl Kernel,
    family: Family,
    tx: &Transaction,
    refused: &mut Vec<Refusal>,
) -> Answer<()> {
    let mut keys = Vec::new();
    let mut changes = Vec::with_capacity(tx.make.iter().map(|(_, s)| 1 + s.targets.len()).sum());
    let mut push = |key: Key, change: Change<'static>| {
        keys.push(key);
        changes.push(change);
    };
    for (key, server) in &tx.make {
        let (service, behaviour) = (key.wire(family), server.behaviour(family));
        push(*key, Change::AddService { service, options: behaviour });
        for (target, weight) in &server.targets {
            push(*key, Change::AddServer { service, server: socket(target), weight: *weight });
        }
    }
    for (key, target, weight) in &tx.join {
        push(*key, Change::AddServer { service: key.wire(family), server: socket(target), weight: *weight });
    }
    for (key, target, weight) in &tx.share {
        push(*key, Change::SetServer { service: key.wire(family), server: socket(target), weight: *weight });
    }
    for (key, server) in &tx.set {
        let behaviour = Server::behaviour(server, family);
        push(*key, Change::SetService { service: key.wire(family), options: behaviour });
    }
    apply(kernel, &keys, &changes, refused)
}

/// Servers and endpoints that go.
fn leavers(
    kernel: &mut impl Kernel,
    family: Family,
    tx: &Transaction,
    refused: &mut Vec<Refusal>,
) -> Answer<()> {
    let mut keys = Vec::new();
    let mut changes = Vec::new();
    if is_unrefused(refused) {
        // Packets to a server that is gone would not be refused.
        return Ok(());
    }
    for (key, target) in &tx.drain {
        let (service, server) = (key.wire(family), socket(target));
        keys.push(*key);
        changes.push(Change::SetServer { service, server, weight: DRAINED });
    }
    for (key, target) in &tx.leave {
        keys.push(*key);
        changes.push(Change::DeleteServer { service: key.wire(family), server: socket(target) });
    }
    let stays = |ip: IpAddr| refused.iter().any(|r| r.about == About::Address(ip));
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
) -> Answer<()> {
    if changes.is_empty() {
        return Ok(());
    }
    for failed in kernel.change_servers(changes)? {
        let change = &changes[failed.index];
        let gone = change.is_no_server(&failed.error) || ipvs::is_no_service(&failed.error);
        let leaves = matches!(change, Change::DeleteServer { .. } | Change::DeleteService { .. });
        let key = keys[failed.index];
        // Without its server, nothing can be put behind it.
        let follows = |r: &Refusal| matches!(r.about, About::Server(k) | About::Scheduler(k) if k == key);
        if gone && (leaves || refused.iter().any(follows)) {
            continue;
        }
        let about = match change {
            _ if change.is_no_scheduler(&failed.error) => About::Scheduler(key),
            Change::AddServer { server, .. } | Change::SetServer { server, .. } => {
                About::Target(key, Target { ip: server.ip(), port: server.port() })
            }
            _ => About::Server(key),
        };
        refused.push(Refusal { about, error: failed.error });
    }
    Ok(())
}
