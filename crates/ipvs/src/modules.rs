//! Whether this kernel can do it, and what to do if not.

use portway_dataplane::{Error, Scheduler};
use portway_model::Family;
use portway_netlink::genl::Genl;
use portway_netlink::ipset::Ipset;
use portway_netlink::ipvs::{self, Change, ServiceOptions};
use portway_netlink::route::{self, LinkKind, NewLink, Rtnetlink};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

/// The oldest kernel whose connections can be told what to do when a port is used again.
const OLDEST: (u32, u32) = (4, 1);
/// An unused mark, for a server that exists for a moment only.
const TRIAL: u32 = 0x7fff_fff0;
/// And a device.
const TRIAL_DEVICE: &str = "portway-trial";

/// What the mode speaks to.
#[derive(Debug)]
pub struct Kernel {
    /// ipvs.
    pub ipvs: Genl,
    /// ipset.
    pub sets: Ipset,
}

/// Loads what is not there, if we may, and says what is missing if not.
pub fn check(scheduler: Scheduler) -> Result<Kernel, Error> {
    if let Some(version) = crate::sysctl::linux().filter(|version| *version < OLDEST) {
        return Err(Error::Unsupported {
            feature: format!("what the ipvs mode needs: it is Linux {}.{}", version.0, version.1),
            hint: format!(
                "kernels before {}.{} cannot be told what becomes of a connection whose port is used again \
                 (net.ipv4.vs.conn_reuse_mode); take a newer one, or --proxy-mode=iptables",
                OLDEST.0, OLDEST.1
            ),
        });
    }
    let mut missing: Vec<String> = Vec::new();
    let mut miss = |module: &str| missing.push(module.to_owned());
    let mut ipvs = loaded("ip_vs", ipvs::open)?;
    let sets = loaded("ip_set", Ipset::open)?;
    match &mut ipvs {
        Some(genl) => {
            if !has_scheduler(genl, scheduler)? {
                miss(&module(scheduler));
            }
            if !Path::new("/proc/sys/net/ipv4/vs/conntrack").exists() {
                return Err(Error::Unsupported {
                    feature: "connection tracking in ip_vs".to_owned(),
                    hint: "it was built without CONFIG_IP_VS_NFCT, so nothing could be masqueraded; use --proxy-mode=nftables".to_owned(),
                });
            }
        }
        None => miss("ip_vs"),
    }
    if !Path::new("/proc/sys/net/netfilter/nf_conntrack_max").exists() && !load("nf_conntrack") {
        miss("nf_conntrack");
    }
    if sets.is_none() {
        miss("ip_set");
    }
    if !has_dummies()? {
        miss("dummy");
    }
    match (ipvs, sets) {
        (Some(ipvs), Some(sets)) if missing.is_empty() => Ok(Kernel { ipvs, sets }),
        _ => Err(lacks(&missing)),
    }
}

fn lacks(missing: &[String]) -> Error {
    Error::Unsupported {
        feature: missing.join(", "),
        hint: format!(
            "the ipvs mode needs {0}: modprobe -a {1} on the host, and name {0} in /etc/modules-load.d/ipvs.conf to have {0} after a reboot; or use --proxy-mode=nftables",
            if missing.len() == 1 { "it" } else { "them" },
            missing.join(" ")
        ),
    }
}

fn module(scheduler: Scheduler) -> String {
    format!("ip_vs_{scheduler}")
}

/// Opens a conversation, after loading the module if need be.
fn loaded<T>(
    module: &str,
    open: impl Fn() -> portway_netlink::Result<Option<T>>,
) -> Result<Option<T>, Error> {
    match open().map_err(refused)? {
        Some(open) => Ok(Some(open)),
        None if load(module) => open().map_err(refused),
        None => Ok(None),
    }
}

/// Loads a module; false if that is not possible.
fn load(module: &str) -> bool {
    let mut command = Command::new("modprobe");
    command.args(["-q", module]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let loaded = command.status().is_ok_and(|status| status.success());
    if loaded {
        tracing::info!(module, "kernel module loaded");
    }
    loaded
}

/// Whether the kernel has a scheduler. Only trying tells: it loads the module itself, from wherever it may come.
pub fn has_scheduler(genl: &mut Genl, scheduler: Scheduler) -> Result<bool, Error> {
    if tries_scheduler(genl, scheduler)? {
        return Ok(true);
    }
    Ok(load(&module(scheduler)) && tries_scheduler(genl, scheduler)?)
}

fn tries_scheduler(genl: &mut Genl, scheduler: Scheduler) -> Result<bool, Error> {
    let address = Ipv4Addr::UNSPECIFIED.into();
    let service = ipvs::Key { protocol: 0, address, port: 0, fwmark: TRIAL };
    let options = ServiceOptions { scheduler: scheduler.as_str(), flags: 0, timeout: 0, netmask: u32::MAX };
    let change = Change::AddService { service, options };
    let tried = match ipvs::apply(genl, &change) {
        Err(e) if change.is_no_scheduler(&e) => return Ok(false),
        Err(e) if !e.is_exists() => Err(refused(e)),
        _ => Ok(true),
    };
    ipvs::delete_service(genl, &service).map_err(refused)?;
    tried
}

/// Whether our device is there, or could be made.
fn has_dummies() -> Result<bool, Error> {
    let mut route = Rtnetlink::open().map_err(refused)?;
    if route.link(crate::DEVICE).map_err(refused)?.is_some() {
        return Ok(true);
    }
    for attempt in 0..2 {
        let new = NewLink { name: TRIAL_DEVICE.into(), kind: LinkKind::Dummy, up: false, master: None };
        let made = route.apply(&route::Change::AddLink(new));
        if let Some(link) = route.link(TRIAL_DEVICE).map_err(refused)? {
            route.apply(&route::Change::DeleteLink { link: link.index }).map_err(refused)?;
        }
        match made {
            Ok(()) => return Ok(true),
            Err(e) if e.is_exists() => return Ok(true),
            Err(e) if e.is_permission() => return Err(refused(e)),
            Err(_) if attempt == 0 && load("dummy") => {}
            Err(_) => return Ok(false),
        }
    }
    Ok(false)
}

/// Turns the kernel's refusal into words about what can be done.
pub(crate) fn refused(error: portway_netlink::Error) -> Error {
    if error.is_permission() {
        return Error::Permission { operation: "program ipvs".to_owned(), source: error.into() };
    }
    Error::Kernel { family: Family::V4, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_command_that_loads_it() {
        let words = lacks(&["ip_vs".to_owned(), "ip_vs_wrr".to_owned()]).to_string();
        assert!(words.contains("lacks ip_vs, ip_vs_wrr"), "{words}");
        assert!(words.contains("modprobe -a ip_vs ip_vs_wrr"), "{words}");
    }
}
