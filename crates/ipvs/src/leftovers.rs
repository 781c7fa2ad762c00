//! What this mode, or kube-proxy's, leaves behind besides rules: servers, sets, our device, and changed sysctls.
//!
//! Servers of others are left alone. A connection through a server lives as long as the server does, so where
//! connections are to live on, servers that have some stay until those have ended.

use crate::DEVICE;
use crate::commit::{is_a_nodes, is_no_address};
use crate::connections;
use crate::listing::Ownership;
use crate::modules::refused;
use crate::servers::{Key, number};
use crate::sets::Set;
use crate::sysctl;
use ipnet::IpNet;
use portway_dataplane::{Clear, Error, Location};
use portway_model::{Family, Protocol};
use portway_netlink::conntrack::{self, Filter, UDP};
use portway_netlink::genl::Genl;
use portway_netlink::ipset::{Ipset, Member};
use portway_netlink::ipvs::{self, VirtualServer};
use portway_netlink::route::{Address, Change, Link, Rtnetlink};
use portway_netlink::{Protocol as Conversation, Socket};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// The place of all objects of this mode that are not rules.
pub fn location() -> Location {
    Location { label: "ipvs".to_owned(), id: String::new(), family: None }
}

/// The objects that this mode or kube-proxy's left, in words; removed afterwards unless `how` says to look. Servers within
/// `exclude` belong to other programs.
pub fn clear(how: Clear, exclude: &[IpNet]) -> Result<Vec<String>, Error> {
    let mut sets = Ipset::open().map_err(refused)?;
    let mut route = Rtnetlink::open().map_err(refused)?;
    let mut genl = open()?;
    let device = route.link(DEVICE).map_err(refused)?;
    let excluded = |ip: &IpAddr| exclude.iter().any(|range| range.contains(ip));
    let mut addresses = addresses(&mut route, device.as_ref())?;
    let theirs = addresses.on_device.iter().any(excluded);
    addresses.on_device.retain(|ip| !excluded(ip));
    let names = set_names(sets.as_mut())?;
    let ownership = ownership(sets.as_mut(), &names, &addresses)?;
    let is_ours = |family: Family, key: Key| {
        ownership[family as usize].is_ours(key) && !key.ip().is_some_and(|ip| excluded(&ip))
    };
    let servers = servers(genl.as_mut(), is_ours)?;

    let found = describe(&servers, device.as_ref(), theirs, addresses.on_device.len(), &names);
    if how == Clear::Look || found.is_empty() {
        return Ok(found);
    }
    if how == Clear::WhenIdle {
        let is_meant = |key: Key| key.ip().is_some_and(|ip| is_ours(Family::of(ip), key));
        let open = connections::open(is_meant)
            .map_err(|source| Error::Kernel { family: Family::V4, source: source.into() })?;
        if open > 0 {
            return Err(Error::Busy { objects: "the virtual servers and addresses of the ipvs mode", open });
        }
    }
    // An address without its server answers with a reset, so it goes first; the device, which remembers what sysctls were,
    // goes last.
    if let Some(device) = &device {
        unbind(&mut route, device.index, &addresses.on_device)?;
    }
    if let Some(genl) = &mut genl {
        for server in &servers {
            ipvs::delete_service(genl, &server.key()).map_err(refused)?;
        }
    }
    if let Err(error) = forget_flows(&servers) {
        tracing::warn!(%error, "UDP flows that ipvs led somewhere could not be forgotten");
    }
    let mut stuck = Vec::new();
    for (name, ..) in &names {
        let destroyed = sets.as_mut().map_or(Ok(true), |sets| sets.destroy(name));
        stuck.extend(destroyed.err().map(|error| error.to_string()));
    }
    if let Some(device) = device {
        let alias = device.alias.as_deref().unwrap_or_default();
        for warning in sysctl::put_back(genl.as_mut(), alias, how == Clear::Now) {
            tracing::warn!("{warning}");
        }
        let link = device.index;
        if !theirs {
            route.apply(&Change::DeleteLink { link }).map_err(refused)?;
        } else if sysctl::is_note(alias) {
            route.apply(&Change::SetAlias { link, alias: String::new() }).map_err(refused)?;
        }
    }
    if stuck.is_empty() {
        Ok(found)
    } else {
        Err(Error::Kernel { family: Family::V4, source: stuck.join("; ").into() })
    }
}

/// Takes addresses off our device. One that stays keeps its server: without it would answer with a reset.
fn unbind(route: &mut Rtnetlink, link: u32, ips: &HashSet<IpAddr>) -> Result<(), Error> {
    let changes: Vec<Change<'_>> =
        ips.iter().map(|ip| Change::DeleteAddress(Address::new(link, IpNet::from(*ip)))).collect();
    let failed = route.apply_all(&changes).map_err(refused)?;
    // What is gone already is as it should be.
    match failed.into_iter().find(|f| !is_no_address(&f.error)) {
        Some(failed) => Err(refused(failed.error)),
        None => Ok(()),
    }
}

fn describe(
    servers: &[VirtualServer],
    device: Option<&Link>,
    theirs: bool,
    addresses: usize,
    sets: &[(String, Set, Family)],
) -> Vec<String> {
    let mut found = Vec::new();
    if !servers.is_empty() {
        found.push(count(servers.len(), "virtual server"));
    }
    if let Some(device) = device {
        let settings = device.alias.as_deref().filter(|alias| !alias.is_empty());
        let also = settings.map_or_else(String::new, |alias| format!(" ({alias})"));
        let addresses = count(addresses, "address");
        // Where others have addresses on it too, it stays with those.
        if !theirs {
            found.push(format!("device {DEVICE} with {addresses}{also}"));
        } else if addresses != count(0, "address") || settings.is_some_and(sysctl::is_note) {
            found.push(format!("{addresses} of device {DEVICE}{also}"));
        }
    }
    if !sets.is_empty() {
        let names: Vec<&str> = sets.iter().map(|(name, ..)| name.as_str()).collect();
        found.push(format!("sets {}", names.join(", ")));
    }
    found
}

fn count(n: usize, what: &str) -> String {
    let plural = match (n, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{n} {what}{plural}")
}

struct Addresses {
    on_device: HashSet<IpAddr>,
    own: BTreeSet<IpAddr>,
}

fn addresses(route: &mut Rtnetlink, device: Option<&Link>) -> Result<Addresses, Error> {
    let all = route.addresses().map_err(refused)?;
    let is_on_device = |link| device.is_some_and(|d| d.index == link);
    let all = all.into_iter().map(|a| (is_on_device(a.link), a.net.addr())).filter(|(_, ip)| is_a_nodes(*ip));
    let (on_device, own): (Vec<_>, Vec<_>) = all.partition(|(on_device, _)| *on_device);
    let ips = |these: Vec<(bool, IpAddr)>| these.into_iter().map(|(_, ip)| ip);
    Ok(Addresses { on_device: ips(on_device).collect(), own: ips(own).collect() })
}

fn set_names(sets: Option<&mut Ipset>) -> Result<Vec<(String, Set, Family)>, Error> {
    let Some(sets) = sets else { return Ok(Vec::new()) };
    let all = sets.names().map_err(refused)?.into_iter();
    Ok(all.filter_map(|info| Set::parse(&info.name).map(|(set, family)| (info.name, set, family))).collect())
}

/// Whose servers are whose, by family.
fn ownership(
    mut sets: Option<&mut Ipset>,
    names: &[(String, Set, Family)],
    addresses: &Addresses,
) -> Result<[Ownership; 2], Error> {
    let mut members: [HashMap<Set, HashSet<Member>>; 2] = Default::default();
    if let Some(sets) = &mut sets {
        for (name, set, family) in names {
            let those = sets.members(name).map_err(refused)?;
            members[*family as usize].entry(*set).or_default().extend(those);
        }
    }
    Ok(members.map(|members| Ownership::new(&members, &addresses.on_device, &addresses.own)))
}

/// Our servers or kube-proxy's.
fn servers(
    genl: Option<&mut Genl>,
    is_ours: impl Fn(Family, Key) -> bool,
) -> Result<Vec<VirtualServer>, Error> {
    let Some(genl) = genl else { return Ok(Vec::new()) };
    let mut all = ipvs::services(genl).map_err(refused)?;
    all.retain(|server| {
        let family = Family::ALL.into_iter().find(|family| number(*family) == server.family);
        family.zip(Key::of(server)).is_some_and(|(family, key)| is_ours(family, key))
    });
    Ok(all)
}

/// A UDP flow that ipvs led somewhere is known to conntrack as one that is not translated. With the server gone it would
/// go nowhere for as long as its client goes on sending; forgotten, its next packet meets the rules.
fn forget_flows(servers: &[VirtualServer]) -> portway_netlink::Result<()> {
    let key = |s: &VirtualServer| (s.address, s.port);
    let udp: HashSet<(IpAddr, u16)> =
        servers.iter().filter(|s| s.protocol == Protocol::Udp.number()).map(key).collect();
    if udp.is_empty() {
        return Ok(());
    }
    let mut socket = Socket::open(Conversation::Netfilter)?;
    for v6 in [false, true] {
        for flow in conntrack::list(&mut socket, v6, Filter { protocol: UDP, destination: None })? {
            let to = (flow.original.destination, flow.original.destination_port);
            if !flow.translated && udp.contains(&to) {
                conntrack::delete(&mut socket, &flow)?;
            }
        }
    }
    Ok(())
}

/// The conversation with ipvs, if it is there: looking must not load it.
fn open() -> Result<Option<Genl>, Error> {
    if !ipvs::is_loaded() {
        return Ok(None);
    }
    ipvs::open().map_err(refused)
}
