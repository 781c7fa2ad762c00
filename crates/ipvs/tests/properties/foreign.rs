//! Virtual servers of other programs, and changes that other processes make to the objects of Portway.

use portway_ipvs::fake::{Fake, FakeServer};
use portway_ipvs::listing::RealServerState;
use portway_ipvs::sets::Set;
use portway_model::{Family, Target};
use portway_netlink::ipset::Member;
use portway_netlink::ipvs::{Key, VirtualServer};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Keys of other programs' virtual servers: at addresses that no Service has, at node addresses and ports that are no
/// node ports, and by mark.
fn foreign_keys() -> Vec<Key> {
    let at = |text: &str| Key::new(6, text.parse::<SocketAddr>().unwrap());
    let marked = |v6: bool| {
        let address = if v6 { "[::]:0" } else { "0.0.0.0:0" }.parse::<SocketAddr>().unwrap().ip();
        Key { protocol: 0, address, port: 0, fwmark: 0x1234_5678 }
    };
    vec![
        at("172.30.0.1:80"),
        at("192.168.50.11:8443"),
        at("[fd77::1]:80"),
        at("[fd50::11]:8443"),
        marked(false),
        marked(true),
    ]
}

pub(crate) fn add_foreign_servers(kernel: &mut Fake) {
    for key in foreign_keys() {
        let server = VirtualServer {
            family: if key.address.is_ipv4() { 2 } else { 10 },
            protocol: key.protocol,
            address: key.address,
            port: key.port,
            fwmark: key.fwmark,
            scheduler: "wlc".to_owned(),
            flags: 2,
            timeout: 0,
            netmask: u32::MAX,
        };
        let target = Target { ip: key.address, port: 9 };
        let state = RealServerState { weight: 5, connections: 1, by_nat: false };
        kernel.servers.insert(key, FakeServer { server, targets: BTreeMap::from([(target, state)]) });
    }
}

/// The virtual servers of other programs that still exist.
pub(crate) fn foreign_servers(kernel: &Fake) -> Vec<FakeServer> {
    foreign_keys().iter().filter_map(|key| kernel.servers.get(key).cloned()).collect()
}

/// A change to an object of Portway; the number selects the object.
#[derive(Clone, Debug)]
pub(crate) enum Tamper {
    RemoveServer(usize),
    RemoveTarget(usize),
    AddTarget(usize),
    RemoveMember(usize),
    AddMember(usize),
    RemoveSet(usize),
    RemoveAddress(usize),
    AddAddress,
    RemoveDevice,
}

pub(crate) fn tamper() -> impl Strategy<Value = Tamper> {
    prop_oneof![
        any::<usize>().prop_map(Tamper::RemoveServer),
        any::<usize>().prop_map(Tamper::RemoveTarget),
        any::<usize>().prop_map(Tamper::AddTarget),
        any::<usize>().prop_map(Tamper::RemoveMember),
        any::<usize>().prop_map(Tamper::AddMember),
        any::<usize>().prop_map(Tamper::RemoveSet),
        any::<usize>().prop_map(Tamper::RemoveAddress),
        Just(Tamper::AddAddress),
        Just(Tamper::RemoveDevice),
    ]
}

impl Tamper {
    pub(crate) fn apply(&self, kernel: &mut Fake, family: Family) {
        let foreign = foreign_keys();
        let managed: Vec<Key> = kernel.servers.keys().copied().filter(|key| !foreign.contains(key)).collect();
        let one = |n: usize| (!managed.is_empty()).then(|| managed[n % managed.len()]);
        match self {
            Tamper::RemoveServer(n) => {
                one(*n).and_then(|key| kernel.servers.remove(&key));
            }
            Tamper::RemoveTarget(n) => {
                if let Some(server) = one(*n).and_then(|key| kernel.servers.get_mut(&key)) {
                    server.targets.pop_first();
                }
            }
            Tamper::AddTarget(n) => {
                if let Some(server) = one(*n).and_then(|key| kernel.servers.get_mut(&key)) {
                    let state = RealServerState { weight: 1, connections: 0, by_nat: true };
                    server.targets.insert(Target { ip: server.server.address, port: 1 }, state);
                }
            }
            Tamper::RemoveMember(n) => {
                let filled: Vec<_> = kernel.sets.values_mut().filter(|s| !s.members.is_empty()).collect();
                let n = n % filled.len().max(1);
                filled.into_iter().nth(n).and_then(|set| set.members.pop_first());
            }
            Tamper::AddMember(n) => {
                let port = Some(1 + (n % 1000) as u16);
                let name = Set::NodePortTcp.name(family);
                let member = Member { port, ..Member::default() };
                kernel.sets.get_mut(name).map(|set| set.members.insert(member));
            }
            Tamper::RemoveSet(n) => {
                let name = Set::ALL[n % Set::ALL.len()].name(family);
                kernel.sets.remove(name);
            }
            Tamper::RemoveAddress(n) => {
                let n = n % kernel.bound.len().max(1);
                if let Some(ip) = kernel.bound.iter().copied().nth(n) {
                    kernel.unbind_by_other_process(ip);
                }
            }
            Tamper::AddAddress => {
                let ip = if family == Family::V4 { "10.96.9.9" } else { "fd96::9:9" };
                kernel.bind_by_other_process(ip.parse().unwrap());
            }
            Tamper::RemoveDevice => kernel.remove_device_by_other_process(),
        }
    }
}
