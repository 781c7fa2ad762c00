//! A kernel as a value: for tests without privileges, and for faults that real ones have only on bad days.
//!
//! It is as strict as the real one: what is there cannot be made, and what is not cannot be changed. And it watches
//! that no packet would have met a reset: an address on the device always has a server, or a rule that refuses.

use crate::commit::{Answer, Failure, Kernel};
use crate::listing::Behind;
use crate::servers::number;
use crate::sets::Set;
use crate::sysctl::Prepared;
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

/// The number of the device.
const LINK: u32 = 7;

/// A set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeSet {
    /// How it was made.
    pub made: NewSet,
    /// What is in it.
    pub members: BTreeSet<Member>,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeServer {
    /// How it behaves.
    pub server: VirtualServer,
    /// Those behind it.
    pub targets: BTreeMap<Target, Behind>,
}

/// A kernel with sets, servers and addresses in it.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    /// Sets, by name.
    pub sets: BTreeMap<String, FakeSet>,
    /// Virtual servers.
    pub servers: BTreeMap<ipvs::Key, FakeServer>,
    /// Whether our device is there.
    pub has_device: bool,
    /// The addresses on it.
    pub bound: BTreeSet<IpAddr>,
    /// The addresses that the machine has anyway.
    pub own: BTreeSet<IpAddr>,
    /// They cannot be listed.
    pub own_is_secret: bool,
    /// Schedulers it does not have.
    pub no_schedulers: BTreeSet<String>,
    /// Endpoints it will not have.
    pub no_targets: BTreeSet<IpAddr>,
    /// Protocols it will not have.
    pub no_protocols: BTreeSet<u8>,
    /// Tracked flows.
    pub flows: Vec<Flow>,
    /// What happened to addresses.
    pub events: Vec<Event>,
    /// How many messages were sent to it that change something.
    pub sent: usize,
    /// Moments in which a packet would have met a reset.
    pub resets: Vec<String>,
    /// How many more changes are made before one fails.
    failing: Option<usize>,
}

fn refused(errno: Errno) -> Failure {
    Error::Refused {
        operation: "change something".to_owned(),
        source: io::Error::from_raw_os_error(errno.raw_os_error()),
        detail: None,
    }
}

impl Fake {
    /// One in which nothing was ever done.
    pub fn new(own: impl IntoIterator<Item = IpAddr>) -> Fake {
        Fake { own: own.into_iter().collect(), ..Fake::default() }
    }

    /// Has one change fail, after so many.
    pub fn fail_after(&mut self, changes: usize) {
        self.failing = Some(changes);
    }

    /// Has none fail any more.
    pub fn recover(&mut self) {
        self.failing = None;
    }

    /// Another program adds an address to the device, and the kernel announces it.
    pub fn bind_by_others(&mut self, ip: IpAddr) {
        if self.has_device && self.bound.insert(ip) {
            self.announce(ip, true);
        }
    }

    /// Another program removes an address from it.
    pub fn unbind_by_others(&mut self, ip: IpAddr) {
        if self.bound.remove(&ip) {
            self.announce(ip, false);
        }
    }

    /// Another program removes the device, with all that is on it.
    pub fn remove_device_by_others(&mut self) {
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

    /// A message comes in; it may be the one that fails.
    fn message(&mut self) -> Result<(), Failure> {
        self.sent += 1;
        match &mut self.failing {
            Some(0) => {
                self.failing = None;
                Err(refused(Errno::NOMEM))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Makes each change; those that fail come back with their places.
    fn each<T>(
        &mut self,
        changes: &[T],
        mut make: impl FnMut(&mut Fake, &T) -> Result<(), Failure>,
    ) -> Vec<Failed> {
        let mut failed = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let made = self.message().and_then(|()| make(self, change));
            failed.extend(made.err().map(|error| Failed { index, error }));
        }
        failed
    }

    fn serves(&self, ip: IpAddr) -> bool {
        self.servers.keys().any(|key| key.fwmark == 0 && key.address == ip)
    }

    /// Whether what goes to an address is refused by a rule.
    fn refuses(&self, ip: IpAddr) -> bool {
        let refusing = |name: &str| Set::parse(name).is_some_and(|(set, _)| set.refuses());
        let those = self.sets.iter().filter(|(name, _)| refusing(name)).flat_map(|(_, set)| &set.members);
        those.into_iter().any(|member| member.ip == Some(ip))
    }

    fn watch(&mut self, ip: IpAddr, when: &str) {
        if self.bound.contains(&ip) && !self.serves(ip) && !self.refuses(ip) {
            self.resets.push(format!("{ip} {when}"));
        }
    }

    fn server(&mut self, service: &ipvs::Key) -> Result<&mut FakeServer, Failure> {
        self.servers.get_mut(service).ok_or_else(|| refused(Errno::SRCH))
    }

    fn change_server(&mut self, change: &Change<'_>) -> Result<(), Failure> {
        let target = |at: std::net::SocketAddr| Target { ip: at.ip(), port: at.port() };
        let behind = |weight| Behind { share: weight, connections: 0, by_nat: true };
        match *change {
            Change::AddService { service, options } | Change::SetService { service, options } => {
                if self.no_schedulers.contains(options.scheduler) {
                    return Err(refused(Errno::NOENT));
                }
                if self.no_protocols.contains(&service.protocol) {
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
                    // The kernel's own mark on every server.
                    flags: options.flags | 2,
                    timeout: options.timeout,
                    netmask: options.netmask,
                };
                let targets = self.servers.remove(&service).map(|s| s.targets).unwrap_or_default();
                self.servers.insert(service, FakeServer { server, targets });
            }
            Change::DeleteService { service } => {
                self.servers.remove(&service).ok_or_else(|| refused(Errno::SRCH))?;
                self.watch(service.address, "lost its last server before it went");
            }
            Change::AddServer { service, server, weight } => {
                if self.no_targets.contains(&server.ip()) {
                    return Err(refused(Errno::INVAL));
                }
                let targets = &mut self.server(&service)?.targets;
                if targets.contains_key(&target(server)) {
                    return Err(refused(Errno::EXIST));
                }
                targets.insert(target(server), behind(weight));
            }
            Change::SetServer { service, server, weight } => {
                let found = self.server(&service)?.targets.get_mut(&target(server));
                let found = found.ok_or_else(|| refused(Errno::NOENT))?;
                *found = Behind { share: weight, by_nat: true, ..*found };
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
            // Found by all but its mark.
            found.members.retain(|m| Member { mark: None, ..*m } != Member { mark: None, ..*member });
            if matches!(change, SetChange::Add { .. }) {
                found.members.insert(*member);
            }
        }
        Ok(())
    }
}

impl Kernel for Fake {
    fn sets(&mut self) -> Answer<Vec<SetInfo>> {
        let info = |set: &FakeSet| SetInfo {
            name: set.made.name.clone(),
            kind: set.made.kind.name().to_owned(),
            family: match (set.made.kind, set.made.v6) {
                (SetKind::Port, _) => 0,
                (_, false) => number(Family::V4),
                (_, true) => number(Family::V6),
            },
            elements: set.members.len() as u32,
            options: if set.made.marks { 1 << 6 } else { 0 },
            max_elements: (set.made.kind != SetKind::Port).then_some(set.made.max_elements),
            ports: (set.made.kind == SetKind::Port).then_some((0, u16::MAX)),
            ..SetInfo::default()
        };
        Ok(self.sets.values().map(info).collect())
    }

    fn members(&mut self, name: &str) -> Answer<Vec<Member>> {
        let set = self.sets.get(name).ok_or_else(|| refused(Errno::NOENT))?;
        Ok(set.members.iter().copied().collect())
    }

    fn make_set(&mut self, set: &NewSet) -> Answer<()> {
        self.message()?;
        let made = FakeSet { made: set.clone(), members: BTreeSet::new() };
        self.sets.entry(set.name.clone()).or_insert(made);
        Ok(())
    }

    fn change_sets(&mut self, changes: &[SetChange<'_>]) -> Answer<Vec<Failed>> {
        Ok(self.each(changes, Fake::change_set))
    }

    fn servers(&mut self, family: Family) -> Answer<Vec<VirtualServer>> {
        let all = self.servers.values().map(|s| s.server.clone());
        Ok(all.filter(|server| server.family == number(family)).collect())
    }

    fn has_server(&mut self, server: &ipvs::Key) -> Answer<bool> {
        Ok(self.servers.contains_key(server))
    }

    fn targets(&mut self, server: &ipvs::Key) -> Answer<HashMap<Target, Behind>> {
        let found = self.servers.get(server).map(|s| s.targets.clone());
        Ok(found.unwrap_or_default().into_iter().collect())
    }

    fn change_servers(&mut self, changes: &[Change<'_>]) -> Answer<Vec<Failed>> {
        Ok(self.each(changes, Fake::change_server))
    }

    fn device(&mut self) -> Answer<Option<u32>> {
        Ok(self.has_device.then_some(LINK))
    }

    fn make_device(&mut self) -> Answer<u32> {
        self.message()?;
        self.has_device = true;
        Ok(LINK)
    }

    fn addresses_on(&mut self, _: u32, family: Family) -> Answer<Vec<IpAddr>> {
        Ok(self.bound.iter().copied().filter(|ip| Family::of(*ip) == family).collect())
    }

    fn own_addresses(&mut self, family: Family) -> Answer<BTreeSet<IpAddr>> {
        if self.own_is_secret {
            return Err(refused(Errno::INTR));
        }
        Ok(self.own.iter().copied().filter(|ip| Family::of(*ip) == family).collect())
    }

    fn change_addresses(&mut self, _: u32, add: bool, ips: &[IpAddr]) -> Answer<Vec<Failed>> {
        Ok(self.each(ips, |fake, ip| {
            let news = if add { fake.bound.insert(*ip) } else { fake.bound.remove(ip) };
            fake.watch(*ip, "came before its server");
            match (news, add) {
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
        !self.no_schedulers.contains(scheduler.as_str())
    }

    fn sent(&self) -> u64 {
        self.sent as u64
    }

    fn prepare(&mut self, _: u32, _: &IpvsSettings) -> Prepared {
        Prepared::default()
    }
}

impl Tracker for Fake {
    fn flows(&mut self, _: Filter) -> Answer<Vec<Flow>> {
        Ok(self.flows.clone())
    }

    fn delete_flow(&mut self, flow: &Flow) -> Answer<bool> {
        let before = self.flows.len();
        self.flows.retain(|f| f != flow);
        Ok(self.flows.len() < before)
    }

    fn addresses(&mut self) -> Answer<Vec<IpAddr>> {
        Ok(self.own.union(&self.bound).copied().collect())
    }
}
