//! Objects listed from the kernel, and which virtual servers among them Portway or kube-proxy created.

use crate::commit::{Failure, Kernel};
use crate::servers::{Key, Server};
use crate::sets::Set;
use ipnet::IpNet;
use portway_model::{Family, Protocol, Target};
use portway_netlink::ipset::{Member, SetInfo};
use portway_netlink::ipvs::VirtualServer;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// The state of a real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServerState {
    /// Its weight.
    pub weight: u32,
    /// The number of its connections, active and inactive.
    pub connections: u32,
    /// Packets are forwarded to it by NAT, as to all real servers that Portway adds.
    pub by_nat: bool,
}

/// A listed virtual server.
#[derive(Clone, Debug)]
pub struct ListedServer {
    /// Its key and options.
    pub server: VirtualServer,
    /// Its real servers.
    pub targets: HashMap<Target, RealServerState>,
}

/// The kernel's objects of one family.
#[derive(Debug, Default)]
pub struct Listing {
    /// The sets of this mode, with their members.
    pub sets: HashMap<Set, HashSet<Member>>,
    /// Sets with a name of this mode and another type or other options.
    pub incompatible: Vec<SetInfo>,
    /// Virtual servers that Portway or kube-proxy created, and those with a wanted key.
    pub servers: HashMap<Key, ListedServer>,
    /// The index of `kube-ipvs0`, if it exists.
    pub device: Option<u32>,
    /// The addresses on it.
    pub addresses: HashSet<IpAddr>,
}

/// Objects whose owner this process knows, whatever the settings are now.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Virtual servers that this process created or adopted.
    pub servers: HashSet<Key>,
    /// Addresses that this process manages on `kube-ipvs0`.
    pub addresses: HashSet<IpAddr>,
    /// Marks of virtual servers of other programs, even if `KUBE-SHORT-CUT` contains them.
    pub foreign_marks: HashSet<u32>,
}

/// Distinguishes virtual servers of Portway or kube-proxy from those of other programs.
#[derive(Debug, Default)]
pub struct Ownership {
    addresses: HashSet<IpAddr>,
    frontends: HashSet<Member>,
    node_ports: HashSet<(Protocol, u16)>,
    node_addresses: BTreeSet<IpAddr>,
    marks: HashSet<u32>,
}

impl Ownership {
    /// Derived from the members of the sets, the addresses on `kube-ipvs0`, and the addresses that node ports use:
    /// those in `KUBE-NODE-IPS`, or all addresses of the node if that set does not exist, since kube-proxy has no such
    /// set. Members are added before their virtual servers and removed after them, so that the objects of an
    /// interrupted sync are recognised too.
    pub fn new(
        sets: &HashMap<Set, HashSet<Member>>,
        addresses: &HashSet<IpAddr>,
        node_addresses: &BTreeSet<IpAddr>,
    ) -> Ownership {
        let of = |set: Set| sets.get(&set).into_iter().flatten();
        let frontends = Set::ALL.into_iter().filter(|s| s.holds_frontends()).flat_map(of).copied().collect();
        let mut node_ports = HashSet::new();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let ports = of(Set::node_ports(protocol).0).filter_map(|m| m.port);
            node_ports.extend(ports.map(|port| (protocol, port)));
        }
        let node_addresses = match sets.contains_key(&Set::NodeIps) {
            true => of(Set::NodeIps).filter_map(|m| m.ip).collect(),
            false => node_addresses.clone(),
        };
        let marked = Set::ALL.into_iter().filter(|s| s.has_marks()).flat_map(of);
        let marks = marked.filter_map(|m| m.mark).map(|(mark, _)| mark).collect();
        Ownership { addresses: addresses.clone(), frontends, node_ports, node_addresses, marks }
    }

    /// Whether Portway or kube-proxy created a virtual server.
    pub fn is_managed(&self, key: Key) -> bool {
        match key {
            Key::Mark(mark) => self.marks.contains(&mark),
            Key::Address { protocol, ip, port } => {
                let number = Some(protocol.number());
                let member = Member { ip: Some(ip), port: Some(port), protocol: number, ..Member::default() };
                self.addresses.contains(&ip)
                    || self.frontends.contains(&member)
                    || self.node_addresses.contains(&ip) && self.node_ports.contains(&(protocol, port))
            }
        }
    }
}

/// Lists all objects. Virtual servers whose key is not `wanted` are left out if another program created them, or if their
/// address is in `exclude`; so are those with a foreign mark. Those that this process created are always included.
pub fn list(
    kernel: &mut impl Kernel,
    family: Family,
    node_addresses: &BTreeSet<IpAddr>,
    exclude: &[IpNet],
    known: &Known,
    wanted: &HashMap<Key, Server>,
) -> Result<Listing, Failure> {
    let (sets, incompatible) = list_sets(kernel, family)?;
    let device = kernel.device()?;
    let excluded = |ip: IpAddr| exclude.iter().any(|range| range.contains(&ip));
    let mut addresses: HashSet<IpAddr> = match device {
        Some(link) => kernel.addresses_on(link, family)?.into_iter().collect(),
        None => HashSet::new(),
    };
    let wanted_addresses: HashSet<IpAddr> = wanted.keys().filter_map(|key| key.ip()).collect();
    let is_known = |ip: &IpAddr| known.addresses.contains(ip) || wanted_addresses.contains(ip);
    addresses.retain(|ip| !excluded(*ip) || is_known(ip));
    let ownership = Ownership::new(&sets, &addresses, node_addresses);
    let mut servers = HashMap::new();
    for server in kernel.servers(family)? {
        let Some(key) = Key::of(&server) else { continue };
        let has_foreign_mark = matches!(key, Key::Mark(mark) if known.foreign_marks.contains(&mark));
        let is_excluded = key.ip().is_some_and(excluded);
        let is_managed = !is_excluded && ownership.is_managed(key);
        if known.servers.contains(&key) || !has_foreign_mark && (wanted.contains_key(&key) || is_managed) {
            let targets = kernel.targets(&server.key())?;
            servers.insert(key, ListedServer { server, targets });
        }
    }
    Ok(Listing { sets, incompatible, servers, device, addresses })
}

type Sets = HashMap<Set, HashSet<Member>>;

/// The sets of this mode in one family, and sets that have such a name but another type or other options.
pub fn list_sets(kernel: &mut impl Kernel, family: Family) -> Result<(Sets, Vec<SetInfo>), Failure> {
    let mut sets = HashMap::new();
    let mut incompatible = Vec::new();
    for info in kernel.sets()? {
        let Some((set, _)) = Set::parse(&info.name).filter(|(_, f)| *f == family) else { continue };
        if info.fits(&set.minimum(family)) {
            let members = kernel.members(&info.name)?;
            sets.insert(set, members.into_iter().map(|m| normalized(set, m)).collect());
        } else {
            incompatible.push(info);
        }
    }
    Ok((sets, incompatible))
}

/// A member as Portway adds it: the kernel omits the prefix length of a range with a single address.
fn normalized(set: Set, member: Member) -> Member {
    let full_length = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    match (set, member.ip2, member.cidr2) {
        (Set::LoadBalancerSourceCidr, Some(ip), None) => Member { cidr2: Some(full_length(ip)), ..member },
        _ => member,
    }
}
