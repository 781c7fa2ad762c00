//! A kernel in memory, for tests without privileges and for injected failures.
//!
//! It is as strict as the real kernel: an existing virtual server cannot be added, and a missing one cannot be
//! changed. It also records moments in which connections would be reset: an address on the device without a virtual
//! server and without a set that blocks it.

use crate::commit::{Failure, Kernel, KernelResult};
use crate::listing::RealServerState;
use crate::servers::address_family;
use crate::sets::Set;
use crate::sysctl::SysctlOutcome;
use ipnet::IpNet;
use portway_dataplane::{IpvsSettings, Scheduler};
use portway_flows::Tracker;
use portway_model::{Family, Target};
use portway_netlink::conntrack::{Filter, Flow};
use portway_netlink::ipset::{Member, NewSet, SetChange, SetInfo, SetKind};
use portway_netlink::ipvs::{self, Change, VirtualServer};
use portway_netlink::route::{Address, Event};
use portway_netlink::{Error, Failed};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;

/// The index of `kube-ipvs0`.
const LINK: u32 = 7;

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeSet {
    /// The parameters it was created with.
    pub spec: NewSet,
    /// Its members.
    pub members: BTreeSet<Member>,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeServer {
    /// Its key and options.
    pub server: VirtualServer,
    /// Its real servers.
    pub targets: BTreeMap<Target, RealServerState>,
}

/// A kernel with sets, virtual servers and addresses.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    /// Sets, by name.
    pub sets: BTreeMap<String, FakeSet>,
    /// Virtual servers.
    pub servers: BTreeMap<ipvs::Key, FakeServer>,
    /// Whether `kube-ipvs0` exists.
    pub has_device: bool,
    /// The addresses on it.
    pub bound: BTreeSet<IpAddr>,
    /// The node's addresses on other devices.
    pub node_addresses: BTreeSet<IpAddr>,
    /// Addresses that cannot be added to the device.
    pub refused_addresses: BTreeSet<IpAddr>,
    /// Listing the node's addresses fails.
    pub fail_node_addresses: bool,
    /// Schedulers it does not have.
    pub missing_schedulers: BTreeSet<String>,
    /// Addresses it refuses as real servers.
    pub refused_targets: BTreeSet<IpAddr>,
    /// Protocols it refuses for virtual servers.
    pub unsupported_protocols: BTreeSet<u8>,
    /// Conntrack entries.
    pub flows: Vec<Flow>,
    /// Notifications of links and addresses that were not read yet.
    pub events: Vec<Event>,
    /// The number of messages that changed or tried to change an object.
    pub sent: usize,
    /// Moments in which connections would be reset.
    pub resets: Vec<String>,
    /// The number of changes that succeed before one fails.
    changes_until_failure: Option<usize>,
}

fn refused(errno: Errno) -> Failure {
    Error::Refused {
        operation: "change something".to_owned(),
        source: io::Error::from_raw_os_error(errno.raw_os_error()),
        detail: None,
    }
}

impl Fake {
    /// A kernel without objects, on a node with these addresses.
    pub fn new(node_addresses: impl IntoIterator<Item = IpAddr>) -> Fake {
        Fake { node_addresses: node_addresses.into_iter().collect(), ..Fake::default() }
    }

    /// Lets one change fail, after `changes` successful ones.
    pub fn fail_after(&mut self, changes: usize) {
        self.changes_until_failure = Some(changes);
    }

    /// Lets no change fail any more.
    pub fn recover(&mut self) {
        self.changes_until_failure = None;
    }

    /// Another process adds an address to the device, and the kernel sends a notification.
    pub fn bind_by_other_process(&mut self, ip: IpAddr) {
        if self.has_device && self.bound.insert(ip) {
            self.announce(ip, true);
        }
    }

    /// Another process removes an address from the device.
    pub fn unbind_by_other_process(&mut self, ip: IpAddr) {
        if self.bound.remove(&ip) {
            self.announce(ip, false);
        }
    }

    /// Another process removes the device with its addresses.
    pub fn remove_device_by_other_process(&mut self) {
        for ip in std::mem::take(&mut self.bound) {
            self.announce(ip, false);
        }
        if std::mem::take(&mut self.has_device) {
            let name = crate::DEVICE.to_owned();
            self.events.push(Event::Link { added: false, index: LINK, name });
        }
    }

    fn announce(&mut self, ip: IpAddr, added: bool) {
        let address = Address::new(LINK, IpNet::from(ip));
        self.events.push(Event::Address { added, address });
    }

    /// Counts a message; an injected failure may apply to it.
    fn receive(&mut self) -> Result<(), Failure> {
        self.sent += 1;
        match &mut self.changes_until_failure {
            Some(0) => {
                self.changes_until_failure = None;
                Err(refused(Errno::NOMEM))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Applies each change; returns the failed ones with their index.
    fn apply_each<T>(
        &mut self,
        changes: &[T],
        mut apply: impl FnMut(&mut Fake, &T) -> Result<(), Failure>,
    ) -> Vec<Failed> {
        let mut failed = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let applied = self.receive().and_then(|()| apply(self, change));
            failed.extend(applied.err().map(|error| Failed { index, error }));
        }
        failed
    }

    fn serves(&self, ip: IpAddr) -> bool {
        self.servers.keys().any(|key| key.fwmark == 0 && key.address == ip)
    }

    /// Whether a rule rejects or drops packets to an address, at least at one port.
    fn is_blocked(&self, ip: IpAddr) -> bool {
        let blocks = |name: &str| Set::parse(name).is_some_and(|(set, _)| set.blocks());
        let members = self.sets.iter().filter(|(name, _)| blocks(name)).flat_map(|(_, set)| &set.members);
        members.into_iter().any(|member| member.ip == Some(ip))
    }

    fn check_reset(&mut self, ip: IpAddr, when: &str) {
        if self.bound.contains(&ip) && !self.serves(ip) && !self.is_blocked(ip) {
            self.resets.push(format!("{ip} {when}"));
        }
    }

    fn server(&mut self, service: &ipvs::Key) -> Result<&mut FakeServer, Failure> {
        self.servers.get_mut(service).ok_or_else(|| refused(Errno::SRCH))
    }

    fn change_server(&mut self, change: &Change<'_>) -> Result<(), Failure> {
        let target = |at: std::net::SocketAddr| Target { ip: at.ip(), port: at.port() };
        let real_server = |weight| RealServerState { weight, connections: 0, by_nat: true };
        match *change {
            Change::AddService { service, options } | Change::SetService { service, options } => {
                if self.missing_schedulers.contains(options.scheduler) {
                    return Err(refused(Errno::NOENT));
                }
                if self.unsupported_protocols.contains(&service.protocol) {
                    return Err(refused(Errno::PROTONOSUPPORT));
                }
                let adds = matches!(change, Change::AddService { .. });
                if adds == self.servers.contains_key(&service) {
                    return Err(refused(if adds { Errno::EXIST } else { Errno::SRCH }));
                }
                let server = VirtualServer {
                    family: if service.address.is_ipv4() { 2 } else { 10 },
                    protocol: service.protocol,
                    address: service.address,
                    port: service.port,
                    fwmark: service.fwmark,
                    scheduler: options.scheduler.to_owned(),
                    // The kernel sets IP_VS_SVC_F_HASHED on every virtual server.
                    flags: options.flags | 2,
                    timeout: options.timeout,
                    netmask: options.netmask,
                };
                let targets = self.servers.remove(&service).map(|s| s.targets).unwrap_or_default();
                self.servers.insert(service, FakeServer { server, targets });
            }
            Change::DeleteService { service } => {
                self.servers.remove(&service).ok_or_else(|| refused(Errno::SRCH))?;
                self.check_reset(service.address, "lost its last virtual server before it was removed");
            }
            Change::AddServer { service, server, weight } => {
                if self.refused_targets.contains(&server.ip()) {
                    return Err(refused(Errno::INVAL));
                }
                let targets = &mut self.server(&service)?.targets;
                if targets.contains_key(&target(server)) {
                    return Err(refused(Errno::EXIST));
                }
                targets.insert(target(server), real_server(weight));
            }
            Change::SetServer { service, server, weight } => {
                let found = self.server(&service)?.targets.get_mut(&target(server));
                let found = found.ok_or_else(|| refused(Errno::NOENT))?;
                *found = RealServerState { weight, by_nat: true, ..*found };
            }
            Change::DeleteServer { service, server } => {
                let found = self.server(&service)?.targets.remove(&target(server));
                found.ok_or_else(|| refused(Errno::NOENT))?;
            }
        }
        Ok(())
    }

    fn change_set(&mut self, change: &SetChange<'_>) -> Result<(), Failure> {
        let (SetChange::Add { set, members } | SetChange::Remove { set, members }) = change;
        let found = self.sets.get_mut(*set).ok_or_else(|| refused(Errno::NOENT))?;
        for member in *members {
            // The mark is not part of the key.
            found.members.retain(|m| Member { mark: None, ..*m } != Member { mark: None, ..*member });
            if matches!(change, SetChange::Add { .. }) {
                found.members.insert(*member);
            }
        }
        Ok(())
    }
}

impl Kernel for Fake {
    fn sets(&mut self) -> KernelResult<Vec<SetInfo>> {
        let info = |set: &FakeSet| SetInfo {
            name: set.spec.name.clone(),
            kind: set.spec.kind.name().to_owned(),
            family: match (set.spec.kind, set.spec.v6) {
                (SetKind::Port, _) => 0,
                (_, false) => address_family(Family::V4),
                (_, true) => address_family(Family::V6),
            },
            elements: set.members.len() as u32,
            options: if set.spec.marks { 1 << 6 } else { 0 },
            max_elements: (set.spec.kind != SetKind::Port).then_some(set.spec.max_elements),
            ports: (set.spec.kind == SetKind::Port).then_some((0, u16::MAX)),
            ..SetInfo::default()
        };
        Ok(self.sets.values().map(info).collect())
    }

    fn members(&mut self, name: &str) -> KernelResult<Vec<Member>> {
        let set = self.sets.get(name).ok_or_else(|| refused(Errno::NOENT))?;
        Ok(set.members.iter().copied().collect())
    }

    fn create_set(&mut self, set: &NewSet) -> KernelResult<()> {
        self.receive()?;
        let made = FakeSet { spec: set.clone(), members: BTreeSet::new() };
        self.sets.entry(set.name.clone()).or_insert(made);
        Ok(())
    }

    fn change_sets(&mut self, changes: &[SetChange<'_>]) -> KernelResult<Vec<Failed>> {
        Ok(self.apply_each(changes, Fake::change_set))
    }

    fn servers(&mut self, family: Family) -> KernelResult<Vec<VirtualServer>> {
        let all = self.servers.values().map(|s| s.server.clone());
        Ok(all.filter(|server| server.family == address_family(family)).collect())
    }

    fn has_server(&mut self, server: &ipvs::Key) -> KernelResult<bool> {
        Ok(self.servers.contains_key(server))
    }

    fn targets(&mut self, server: &ipvs::Key) -> KernelResult<HashMap<Target, RealServerState>> {
        let found = self.servers.get(server).map(|s| s.targets.clone());
        Ok(found.unwrap_or_default().into_iter().collect())
    }

    fn change_servers(&mut self, changes: &[Change<'_>]) -> KernelResult<Vec<Failed>> {
        Ok(self.apply_each(changes, Fake::change_server))
    }

    fn device(&mut self) -> KernelResult<Option<u32>> {
        Ok(self.has_device.then_some(LINK))
    }

    fn create_device(&mut self) -> KernelResult<u32> {
        self.receive()?;
        self.has_device = true;
        Ok(LINK)
    }

    fn addresses_on(&mut self, _: u32, family: Family) -> KernelResult<Vec<IpAddr>> {
        Ok(self.bound.iter().copied().filter(|ip| Family::of(*ip) == family).collect())
    }

    fn node_addresses(&mut self, family: Family) -> KernelResult<BTreeSet<IpAddr>> {
        if self.fail_node_addresses {
            return Err(refused(Errno::INTR));
        }
        Ok(self.node_addresses.iter().copied().filter(|ip| Family::of(*ip) == family).collect())
    }

    fn change_addresses(&mut self, _: u32, add: bool, ips: &[IpAddr]) -> KernelResult<Vec<Failed>> {
        Ok(self.apply_each(ips, |fake, ip| {
            if add && fake.refused_addresses.contains(ip) {
                return Err(refused(Errno::INVAL));
            }
            let changed = if add { fake.bound.insert(*ip) } else { fake.bound.remove(ip) };
            fake.check_reset(*ip, "was added before its virtual server");
            match (changed, add) {
                (true, _) => Ok(()),
                (false, true) => Err(refused(Errno::EXIST)),
                (false, false) => Err(refused(Errno::ADDRNOTAVAIL)),
            }
        }))
    }

    fn events(&mut self) -> Option<Vec<Event>> {
        Some(std::mem::take(&mut self.events))
    }

    fn has_scheduler(&mut self, scheduler: Scheduler) -> bool {
        !self.missing_schedulers.contains(scheduler.as_str())
    }

    fn sent(&self) -> u64 {
        self.sent as u64
    }

    fn set_sysctls(&mut self, _: u32, _: &IpvsSettings) -> SysctlOutcome {
        SysctlOutcome::default()
    }
}

impl Tracker for Fake {
    fn flows(&mut self, _: Filter) -> KernelResult<Vec<Flow>> {
        Ok(self.flows.clone())
    }

    fn delete_flow(&mut self, flow: &Flow) -> KernelResult<bool> {
        let before = self.flows.len();
        self.flows.retain(|f| f != flow);
        Ok(self.flows.len() < before)
    }

    fn addresses(&mut self) -> KernelResult<Vec<IpAddr>> {
        Ok(self.node_addresses.union(&self.bound).copied().collect())
    }
}
