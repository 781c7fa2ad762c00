//! Lists and removes the objects of this mode, or of kube-proxy's ipvs mode, that are not rules: virtual servers, sets,
//! `kube-ipvs0` and changed sysctls.
//!
//! Virtual servers of other programs are left alone. A connection ends with its virtual server, so with
//! [`Clear::WhenIdle`] nothing is removed while a connection is open.

use crate::DEVICE;
use crate::commit::{is_no_address, is_node_address};
use crate::connections;
use crate::listing::Ownership;
use crate::modules::kernel_error;
use crate::servers::{Key, address_family};
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
use portway_netlink::{Protocol as NetlinkProtocol, Socket};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

/// The location of all objects of this mode that are not rules.
pub fn location() -> Location {
    Location { label: "ipvs".to_owned(), id: String::new(), family: None }
}

/// Lists the objects of this mode or of kube-proxy's ipvs mode, in words, and removes them unless `how` is
/// [`Clear::List`]. Virtual servers within `exclude` belong to other programs.
pub fn clear(how: Clear, exclude: &[IpNet]) -> Result<Vec<String>, Error> {
    let mut sets = Ipset::open().map_err(kernel_error)?;
    let mut route = Rtnetlink::open().map_err(kernel_error)?;
    let mut genl = open()?;
    let device = route.link(DEVICE).map_err(kernel_error)?;
    let excluded = |ip: &IpAddr| exclude.iter().any(|range| range.contains(ip));
    let mut addresses = addresses(&mut route, device.as_ref())?;
    let has_foreign = addresses.on_device.iter().any(excluded);
    addresses.on_device.retain(|ip| !excluded(ip));
    let names = set_names(sets.as_mut())?;
    let ownership = ownership(sets.as_mut(), &names, &addresses)?;
    let is_managed = |family: Family, key: Key| {
        ownership[family as usize].is_managed(key) && !key.ip().is_some_and(|ip| excluded(&ip))
    };
    let servers = servers(genl.as_mut(), is_managed)?;

    let found = describe(&servers, device.as_ref(), has_foreign, addresses.on_device.len(), &names);
    if how == Clear::List || found.is_empty() {
        return Ok(found);
    }
    if how == Clear::WhenIdle {
        let is_included = |key: Key| key.ip().is_some_and(|ip| is_managed(Family::of(ip), key));
        let open = connections::count_open(is_included)
            .map_err(|source| Error::Kernel { family: Family::V4, source: source.into() })?;
        if open > 0 {
            return Err(Error::Busy { objects: "the virtual servers and addresses of the ipvs mode", open });
        }
    }
    // The node would reset connections to an address without virtual server, so addresses are removed first. The
    // device, whose alias records the previous sysctl values, is removed last.
    if let Some(device) = &device {
        unbind(&mut route, device.index, &addresses.on_device)?;
    }
    if let Some(genl) = &mut genl {
        for server in &servers {
            ipvs::delete_service(genl, &server.key()).map_err(kernel_error)?;
        }
    }
    if let Err(error) = delete_udp_flows(&servers) {
        tracing::warn!(%error, "conntrack entries of UDP flows through ipvs could not be deleted");
    }
    let mut failures = Vec::new();
    for (name, ..) in &names {
        let destroyed = sets.as_mut().map_or(Ok(true), |sets| sets.destroy(name));
        failures.extend(destroyed.err().map(|error| error.to_string()));
    }
    if let Some(device) = device {
        let alias = device.alias.as_deref().unwrap_or_default();
        for warning in sysctl::restore(genl.as_mut(), alias, how == Clear::Now) {
            tracing::warn!("{warning}");
        }
        let link = device.index;
        if !has_foreign {
            route.apply(&Change::DeleteLink { link }).map_err(kernel_error)?;
        } else if sysctl::is_portway_alias(alias) {
            route.apply(&Change::SetAlias { link, alias: String::new() }).map_err(kernel_error)?;
        }
    }
    if failures.is_empty() {
        Ok(found)
    } else {
        Err(Error::Kernel { family: Family::V4, source: failures.join("; ").into() })
    }
}

/// Removes addresses from `kube-ipvs0`. If one cannot be removed, the virtual servers are kept: the node would reset
/// connections to it.
fn unbind(route: &mut Rtnetlink, link: u32, ips: &HashSet<IpAddr>) -> Result<(), Error> {
    let changes: Vec<Change<'_>> =
        ips.iter().map(|ip| Change::DeleteAddress(Address::new(link, IpNet::from(*ip)))).collect();
    let failed = route.apply_all(&changes).map_err(kernel_error)?;
    // An address that is gone already is no failure.
    match failed.into_iter().find(|f| !is_no_address(&f.error)) {
        Some(failed) => Err(kernel_error(failed.error)),
        None => Ok(()),
    }
}

fn describe(
    servers: &[VirtualServer],
    device: Option<&Link>,
    has_foreign: bool,
    addresses: usize,
    sets: &[(String, Set, Family)],
) -> Vec<String> {
    let mut found = Vec::new();
    if !servers.is_empty() {
        found.push(count(servers.len(), "virtual server"));
    }
    if let Some(device) = device {
        let settings = device.alias.as_deref().filter(|alias| !alias.is_empty());
        let alias = settings.map_or_else(String::new, |alias| format!(" ({alias})"));
        let addresses = count(addresses, "address");
        // The device stays if it has addresses of other programs.
        if !has_foreign {
            found.push(format!("device {DEVICE} with {addresses}{alias}"));
        } else if addresses != count(0, "address") || settings.is_some_and(sysctl::is_portway_alias) {
            found.push(format!("{addresses} of device {DEVICE}{alias}"));
        }
    }
    if !sets.is_empty() {
        let names: Vec<&str> = sets.iter().map(|(name, ..)| name.as_str()).collect();
        found.push(format!("sets {}", names.join(", ")));
    }
    found
}

fn count(n: usize, noun: &str) -> String {
    let plural = match (n, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{n} {noun}{plural}")
}

struct Addresses {
    on_device: HashSet<IpAddr>,
    node_addresses: BTreeSet<IpAddr>,
}

fn addresses(route: &mut Rtnetlink, device: Option<&Link>) -> Result<Addresses, Error> {
    let all = route.addresses().map_err(kernel_error)?;
    let is_on_device = |link| device.is_some_and(|d| d.index == link);
    let all =
        all.into_iter().map(|a| (is_on_device(a.link), a.net.addr())).filter(|(_, ip)| is_node_address(*ip));
    let (on_device, node_addresses): (Vec<_>, Vec<_>) = all.partition(|(on_device, _)| *on_device);
    let ips = |pairs: Vec<(bool, IpAddr)>| pairs.into_iter().map(|(_, ip)| ip);
    Ok(Addresses { on_device: ips(on_device).collect(), node_addresses: ips(node_addresses).collect() })
}

fn set_names(sets: Option<&mut Ipset>) -> Result<Vec<(String, Set, Family)>, Error> {
    let Some(sets) = sets else { return Ok(Vec::new()) };
    let all = sets.names().map_err(kernel_error)?.into_iter();
    Ok(all.filter_map(|info| Set::parse(&info.name).map(|(set, family)| (info.name, set, family))).collect())
}

/// The ownership of virtual servers, by family.
fn ownership(
    mut sets: Option<&mut Ipset>,
    names: &[(String, Set, Family)],
    addresses: &Addresses,
) -> Result<[Ownership; 2], Error> {
    let mut members: [HashMap<Set, HashSet<Member>>; 2] = Default::default();
    if let Some(sets) = &mut sets {
        for (name, set, family) in names {
            let listed = sets.members(name).map_err(kernel_error)?;
            members[*family as usize].entry(*set).or_default().extend(listed);
        }
    }
    Ok(members.map(|members| Ownership::new(&members, &addresses.on_device, &addresses.node_addresses)))
}

/// The virtual servers of Portway or kube-proxy.
fn servers(
    genl: Option<&mut Genl>,
    is_managed: impl Fn(Family, Key) -> bool,
) -> Result<Vec<VirtualServer>, Error> {
    let Some(genl) = genl else { return Ok(Vec::new()) };
    let mut all = ipvs::services(genl).map_err(kernel_error)?;
    all.retain(|server| {
        let family = Family::ALL.into_iter().find(|family| address_family(*family) == server.family);
        family.zip(Key::of(server)).is_some_and(|(family, key)| is_managed(family, key))
    });
    Ok(all)
}

/// Deletes the conntrack entries of UDP flows to removed virtual servers. Conntrack has them as not translated, so the
/// packets would reach no endpoint as long as the client keeps sending. Without the entry, the next packet traverses
/// the nat rules.
fn delete_udp_flows(servers: &[VirtualServer]) -> portway_netlink::Result<()> {
    let key = |s: &VirtualServer| (s.address, s.port);
    let udp: HashSet<(IpAddr, u16)> =
        servers.iter().filter(|s| s.protocol == Protocol::Udp.number()).map(key).collect();
    if udp.is_empty() {
        return Ok(());
    }
    let mut socket = Socket::open(NetlinkProtocol::Netfilter)?;
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

/// The socket for ipvs; none if the module is not loaded, since a listing must not load it.
fn open() -> Result<Option<Genl>, Error> {
    if !ipvs::is_loaded() {
        return Ok(None);
    }
    ipvs::open().map_err(kernel_error)
}
