//! Checks that this kernel has the modules and features that the mode needs, and loads missing modules.

use portway_dataplane::{Error, Scheduler};
use portway_model::Family;
use portway_netlink::genl::Genl;
use portway_netlink::ipset::Ipset;
use portway_netlink::ipvs::{self, Change, ServiceOptions};
use portway_netlink::route::{self, LinkKind, NewLink, Rtnetlink};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

/// The first kernel with `net.ipv4.vs.conn_reuse_mode`.
const OLDEST: (u32, u32) = (4, 1);
/// An unused mark, for the virtual server of a probe, which is deleted at once.
const PROBE_MARK: u32 = 0x7fff_fff0;
/// The dummy device of a probe, which is deleted at once.
const PROBE_DEVICE: &str = "portway-trial";

/// The netlink sockets of the mode.
#[derive(Debug)]
pub struct Sockets {
    /// For ipvs.
    pub ipvs: Genl,
    /// For ipset.
    pub sets: Ipset,
}

/// Loads missing modules if this process has the permission, and opens the sockets. The error names the modules that
/// are still missing.
pub fn check(scheduler: Scheduler) -> Result<Sockets, Error> {
    if let Some(version) = crate::sysctl::linux().filter(|version| *version < OLDEST) {
        return Err(Error::Unsupported {
            feature: "net.ipv4.vs.conn_reuse_mode".to_owned(),
            hint: format!(
                "the ipvs mode needs Linux {}.{} or newer, and this is Linux {}.{}; use a newer kernel or --proxy-mode=iptables",
                OLDEST.0, OLDEST.1, version.0, version.1
            ),
        });
    }
    let mut missing: Vec<String> = Vec::new();
    let mut miss = |module: &str| missing.push(module.to_owned());
    let mut ipvs = open_or_load("ip_vs", ipvs::open)?;
    let sets = open_or_load("ip_set", Ipset::open)?;
    match &mut ipvs {
        Some(genl) => {
            if !has_scheduler(genl, scheduler)? {
                miss(&module(scheduler));
            }
            if !Path::new("/proc/sys/net/ipv4/vs/conntrack").exists() {
                return Err(Error::Unsupported {
                    feature: "connection tracking in ip_vs".to_owned(),
                    hint: "it was built without CONFIG_IP_VS_NFCT, so connections could not be masqueraded; use --proxy-mode=nftables".to_owned(),
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
    if !has_dummy_devices()? {
        miss("dummy");
    }
    match (ipvs, sets) {
        (Some(ipvs), Some(sets)) if missing.is_empty() => Ok(Sockets { ipvs, sets }),
        _ => Err(missing_modules(&missing)),
    }
}

fn missing_modules(missing: &[String]) -> Error {
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

/// Opens a socket, after loading the module if it is missing. `None` if the module cannot be loaded.
fn open_or_load<T>(
    module: &str,
    open: impl Fn() -> portway_netlink::Result<Option<T>>,
) -> Result<Option<T>, Error> {
    match open().map_err(kernel_error)? {
        Some(open) => Ok(Some(open)),
        None if load(module) => open().map_err(kernel_error),
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

/// Whether the kernel has a scheduler. A virtual server is added as a probe, because the kernel loads the scheduler's
/// module on use.
pub fn has_scheduler(genl: &mut Genl, scheduler: Scheduler) -> Result<bool, Error> {
    if probe_scheduler(genl, scheduler)? {
        return Ok(true);
    }
    Ok(load(&module(scheduler)) && probe_scheduler(genl, scheduler)?)
}

fn probe_scheduler(genl: &mut Genl, scheduler: Scheduler) -> Result<bool, Error> {
    let address = Ipv4Addr::UNSPECIFIED.into();
    let service = ipvs::Key { protocol: 0, address, port: 0, fwmark: PROBE_MARK };
    let options = ServiceOptions { scheduler: scheduler.as_str(), flags: 0, timeout: 0, netmask: u32::MAX };
    let change = Change::AddService { service, options };
    let probed = match ipvs::apply(genl, &change) {
        Err(e) if change.is_no_scheduler(&e) => return Ok(false),
        Err(e) if !e.is_exists() => Err(kernel_error(e)),
        _ => Ok(true),
    };
    ipvs::delete_service(genl, &service).map_err(kernel_error)?;
    probed
}

/// Whether `kube-ipvs0` exists, or a dummy device can be created.
fn has_dummy_devices() -> Result<bool, Error> {
    let mut route = Rtnetlink::open().map_err(kernel_error)?;
    if route.link(crate::DEVICE).map_err(kernel_error)?.is_some() {
        return Ok(true);
    }
    for attempt in 0..2 {
        let new = NewLink { name: PROBE_DEVICE.into(), kind: LinkKind::Dummy, up: false, master: None };
        let created = route.apply(&route::Change::AddLink(new));
        if let Some(link) = route.link(PROBE_DEVICE).map_err(kernel_error)? {
            route.apply(&route::Change::DeleteLink { link: link.index }).map_err(kernel_error)?;
        }
        match created {
            Ok(()) => return Ok(true),
            Err(e) if e.is_exists() => return Ok(true),
            Err(e) if e.is_permission() => return Err(kernel_error(e)),
            Err(_) if attempt == 0 && load("dummy") => {}
            Err(_) => return Ok(false),
        }
    }
    Ok(false)
}

/// The error for a refusal by the kernel; missing permission is distinguished.
pub(crate) fn kernel_error(error: portway_netlink::Error) -> Error {
    if error.is_permission() {
        return Error::Permission { operation: "program ipvs".to_owned(), source: error.into() };
    }
    Error::Kernel { family: Family::V4, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_modules_are_named_with_the_command_that_loads_them() {
        let message = missing_modules(&["ip_vs".to_owned(), "ip_vs_wrr".to_owned()]).to_string();
        assert!(message.contains("lacks ip_vs, ip_vs_wrr"), "{message}");
        assert!(message.contains("modprobe -a ip_vs ip_vs_wrr"), "{message}");
    }
}
