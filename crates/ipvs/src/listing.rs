//! What the kernel holds, and whose it is.

use crate::commit::{Failure, Kernel};
use crate::servers::Key;
use crate::sets::Set;
use ipnet::IpNet;
use portway_model::{Family, Protocol, Target};
use portway_netlink::ipset::{Member, SetInfo};
use portway_netlink::ipvs::VirtualServer;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// One of those behind a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Its share.
    pub share: u32,
    /// How many connections it has, opening and closing ones too.
    pub connections: u32,
    /// It is reached by NAT, as ours are.
    pub by_nat: bool,
}

/// A server, as found.
#[derive(Clone, Debug)]
pub struct Found {
    /// How it behaves.
    pub server: VirtualServer,
    /// Those behind it.
    pub targets: HashMap<Target, Behind>,
}

/// What the kernel holds of one family.
#[derive(Debug, Default)]
pub struct Seen {
    /// Our sets, and what is in them.
    pub sets: HashMap<Set, HashSet<Member>>,
    /// Sets with one of our names that are not what we would have made.
    pub unfit: Vec<SetInfo>,
    /// Servers that are ours, or where ours are wanted.
    pub servers: HashMap<Key, Found>,
    /// The number of our device, if it is there.
    pub device: Option<u32>,
    /// The addresses on it.
    pub addresses: HashSet<IpAddr>,
}

/// What we made, as far as we know: that is ours whatever the settings say now.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Servers.
    pub servers: HashSet<Key>,
    /// Addresses on our device.
    pub addresses: HashSet<IpAddr>,
    /// Marks of others' servers, whatever our sets say.
    pub foreign_marks: HashSet<u32>,
}

/// Tells our servers from those of others.
#[derive(Debug, Default)]
pub struct Ownership {
    addresses: HashSet<IpAddr>,
    frontends: HashSet<Member>,
    node_ports: HashSet<(Protocol, u16)>,
    own: BTreeSet<IpAddr>,
    marks: HashSet<u32>,
}

impl Ownership {
    /// By what is in our sets, the addresses on our device, and where node ports answer: at those in our set, or, beside
    /// the sets of kube-proxy, which has none for it, at any that the machine has. Members come before their servers and go
    /// after them, so that what a killed run left half done is known too.
    pub fn new(
        sets: &HashMap<Set, HashSet<Member>>,
        addresses: &HashSet<IpAddr>,
        own: &BTreeSet<IpAddr>,
    ) -> Ownership {
        let of = |set: Set| sets.get(&set).into_iter().flatten();
        let frontends = Set::ALL.into_iter().filter(|s| s.holds_frontends()).flat_map(of).copied().collect();
        let mut node_ports = HashSet::new();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let ports = of(Set::node_ports(protocol).0).filter_map(|m| m.port);
            node_ports.extend(ports.map(|port| (protocol, port)));
        }
        let own = match sets.contains_key(&Set::NodeIps) {
            true => of(Set::NodeIps).filter_map(|m| m.ip).collect(),
            false => own.clone(),
        };
        let marked = Set::ALL.into_iter().filter(|s| s.has_marks()).flat_map(of);
        let marks = marked.filter_map(|m| m.mark).map(|(mark, _)| mark).collect();
        Ownership { addresses: addresses.clone(), frontends, node_ports, own, marks }
    }

    /// Whether a server is ours.
    pub fn is_ours(&self, key: Key) -> bool {
        match key {
            Key::Mark(mark) => self.marks.contains(&mark),
            Key::At { protocol, ip, port } => {
                let number = Some(protocol.number());
                let member = Member { ip: Some(ip), port: Some(port), protocol: number, ..Member::default() };
                self.addresses.contains(&ip)
                    || self.frontends.contains(&member)
                    || self.own.contains(&ip) && self.node_ports.contains(&(protocol, port))
            }
        }
    }
}

/// Lists everything. `wanted` are the servers that should be there; of others' nothing is looked at, nor of those within
/// `exclude`.
pub fn list(
    kernel: &mut impl Kernel,
    family: Family,
    own: &BTreeSet<IpAddr>,
    exclude: &[IpNet],
    known: &Known,
    wanted: impl Fn(Key) -> bool,
) -> Result<Seen, Failure> {
    let (sets, unfit) = list_sets(kernel, family)?;
    let device = kernel.device()?;
    let excluded = |ip: IpAddr| exclude.iter().any(|range| range.contains(&ip));
    let mut addresses: HashSet<IpAddr> = match device {
        Some(link) => kernel.addresses_on(link, family)?.into_iter().collect(),
        None => HashSet::new(),
    };
    addresses.retain(|ip| !excluded(*ip) || known.addresses.contains(ip));
    let ownership = Ownership::new(&sets, &addresses, own);
    let mut servers = HashMap::new();
    for server in kernel.servers(family)? {
        let Some(key) = Key::of(&server) else { continue };
        let theirs = match key {
            Key::Mark(mark) => known.foreign_marks.contains(&mark),
            Key::At { ip, .. } => excluded(ip),
        };
        if known.servers.contains(&key) || !theirs && (wanted(key) || ownership.is_ours(key)) {
            let targets = kernel.targets(&server.key())?;
            servers.insert(key, Found { server, targets });
        }
    }
    Ok(Seen { sets, unfit, servers, device, addresses })
}

type Sets = HashMap<Set, HashSet<Member>>;

/// Our sets of one family, and those that only have the name.
pub fn list_sets(kernel: &mut impl Kernel, family: Family) -> Result<(Sets, Vec<SetInfo>), Failure> {
    let mut sets = HashMap::new();
    let mut unfit = Vec::new();
    for info in kernel.sets()? {
        let Some((set, _)) = Set::parse(&info.name).filter(|(_, f)| *f == family) else { continue };
        if info.fits(&set.least(family)) {
            let members = kernel.members(&info.name)?;
            sets.insert(set, members.into_iter().map(|m| normal(set, m)).collect());
        } else {
            unfit.push(info);
        }
    }
    Ok((sets, unfit))
}

/// A member as we would have made it: the kernel leaves out the length of a network of one address.
fn normal(set: Set, member: Member) -> Member {
    let whole = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    match (set, member.ip2, member.cidr2) {
        (Set::LoadBalancerSourceCidr, Some(ip), None) => Member { cidr2: Some(whole(ip)), ..member },
        _ => member,
    }
}
