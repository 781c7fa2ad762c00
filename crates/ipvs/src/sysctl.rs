//! The sysctls and timeouts that the mode sets. Their previous values are recorded in the alias of `kube-ipvs0` for a
//! later cleanup: the alias exists as long as the addresses of the mode, and `ip link` shows it.

use portway_dataplane::{IpvsSettings, Scheduler};
use portway_netlink::genl::Genl;
use portway_netlink::ipvs::{self, Timeouts};
use portway_netlink::route::{Change, Rtnetlink};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The short name of each sysctl, and its path below [`DIRECTORY`].
const FILES: [(&str, &str); 7] = [
    ("ip_forward", "ip_forward"),
    ("conntrack", "vs/conntrack"),
    ("conn_reuse_mode", "vs/conn_reuse_mode"),
    ("expire_nodest_conn", "vs/expire_nodest_conn"),
    ("expire_quiescent_template", "vs/expire_quiescent_template"),
    ("arp_ignore", "conf/all/arp_ignore"),
    ("arp_announce", "conf/all/arp_announce"),
];
const FORWARDING: &str = "ip_forward";
/// The name under which the three timeouts are recorded.
const TIMEOUTS: &str = "timeouts";
/// The beginning of an alias that Portway wrote.
const ALIAS_PREFIX: &str = "portway changed from ";

/// Settings with which all sysctls of the mode are set.
const WITH_STRICT_ARP: IpvsSettings = IpvsSettings {
    scheduler: Scheduler::RoundRobin,
    exclude: Vec::new(),
    strict_arp: true,
    tcp_timeout: None,
    tcp_fin_timeout: None,
    udp_timeout: None,
};

/// The sysctls of IPv4.
const DIRECTORY: &str = "/proc/sys/net/ipv4";

/// The outcome of setting the sysctls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SysctlOutcome {
    /// Sysctls that could not be set or recorded.
    pub warnings: Vec<String>,
    /// The reason why the mode cannot work.
    pub fatal: Option<String>,
}

/// The previous values of sysctls, by short name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PreviousValues(BTreeMap<String, String>);

impl PreviousValues {
    fn parse(alias: &str) -> PreviousValues {
        let pairs = alias.strip_prefix(ALIAS_PREFIX).unwrap_or_default().split(' ');
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        PreviousValues(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn print(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{ALIAS_PREFIX}{}", pairs.join(" "))
    }
}

/// Whether Portway wrote an alias.
pub(crate) fn is_portway_alias(alias: &str) -> bool {
    alias.starts_with(ALIAS_PREFIX)
}

/// The major and minor version of Linux.
pub fn linux() -> Option<(u32, u32)> {
    parse_release(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

fn parse_release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The wanted values. `conn_reuse_mode` 1 selects a new endpoint when a client reuses a port. Before Linux 5.9 that
/// delayed the connection by a second, so such a connection keeps its old endpoint there (0).
fn wanted(settings: &IpvsSettings, linux: Option<(u32, u32)>) -> Vec<(&'static str, &'static str)> {
    let reuse = if linux.is_none_or(|version| version >= (5, 9)) { "1" } else { "0" };
    let mut wanted = vec![
        ("ip_forward", "1"),
        ("conntrack", "1"),
        ("conn_reuse_mode", reuse),
        ("expire_nodest_conn", "1"),
        ("expire_quiescent_template", "1"),
    ];
    if settings.strict_arp {
        wanted.extend([("arp_ignore", "1"), ("arp_announce", "2")]);
    }
    wanted
}

/// The value of a sysctl while the mode needs it.
fn mode_value(name: &str) -> Option<&'static str> {
    wanted(&WITH_STRICT_ARP, linux()).into_iter().find(|(n, _)| *n == name).map(|(_, value)| value)
}

fn read(name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(DIRECTORY).join(file(name)?)).ok()?;
    Some(text.trim().to_owned())
}

fn write(name: &str, value: &str) -> std::io::Result<()> {
    let file = file(name).ok_or(std::io::ErrorKind::NotFound)?;
    fs::write(Path::new(DIRECTORY).join(file), value)
}

fn file(name: &str) -> Option<&'static str> {
    FILES.iter().find(|(n, _)| *n == name).map(|(_, file)| *file)
}

/// Sets the sysctls that the settings need and restores those that they no longer need. `recorded` is the alias as last
/// written, since the device may have been deleted.
pub(crate) fn apply(
    route: &mut Rtnetlink,
    genl: &mut Genl,
    link: u32,
    settings: &IpvsSettings,
    recorded: &mut String,
) -> SysctlOutcome {
    let mut outcome = SysctlOutcome::default();
    let mut alias = Alias::read(route, link);
    let mut previous = PreviousValues::parse(if alias.is_portways() { &alias.alias } else { recorded });
    let wanted = wanted(settings, linux());
    // Previous values are recorded before the change, so that they are not lost if the process is killed.
    for (name, value) in &wanted {
        if let Some(old) = read(name).filter(|old| old != value) {
            previous.0.entry((*name).to_owned()).or_insert(old);
        }
    }
    let timeouts = record_timeouts(genl, settings, &mut previous);
    alias.write(&previous, recorded, &mut outcome);
    for (name, value) in &wanted {
        set(name, value, &mut outcome);
    }
    if let Some(timeouts) = timeouts
        && let Err(e) = ipvs::set_timeouts(genl, &timeouts)
    {
        outcome.warnings.push(e.to_string());
    }
    previous.0.retain(|name, old| {
        let is_kept = name == TIMEOUTS || wanted.iter().any(|(n, _)| n == name);
        let is_unchanged = || mode_value(name).is_some_and(|value| read(name).as_deref() == Some(value));
        if is_kept || !is_unchanged() {
            return is_kept;
        }
        // The record of a value that could not be restored stays for the next attempt.
        write(name, old).is_err_and(|e| {
            outcome.warnings.push(format!("sysctl {name} could not be restored to {old}: {e}"));
            true
        })
    });
    alias.write(&previous, recorded, &mut outcome);
    outcome
}

/// The alias of `kube-ipvs0`.
struct Alias<'r> {
    route: &'r mut Rtnetlink,
    link: u32,
    alias: String,
}

impl Alias<'_> {
    fn read(route: &mut Rtnetlink, link: u32) -> Alias<'_> {
        let alias = route.link(crate::DEVICE).ok().flatten().and_then(|l| l.alias).unwrap_or_default();
        Alias { route, link, alias }
    }

    fn is_portways(&self) -> bool {
        is_portway_alias(&self.alias)
    }

    /// Records the previous values. An alias of another program is kept; the values are then logged once.
    fn write(&mut self, previous: &PreviousValues, recorded: &mut String, outcome: &mut SysctlOutcome) {
        let alias = previous.print();
        let changed = alias != *recorded;
        recorded.clone_from(&alias);
        if !self.alias.is_empty() && !self.is_portways() {
            if changed && !alias.is_empty() {
                outcome.warnings.push(format!(
                    "{} has the alias of another program, so the previous sysctl values are recorded only in this message: {alias}",
                    crate::DEVICE
                ));
            }
            return;
        }
        if alias == self.alias {
            return;
        }
        match self.route.apply(&Change::SetAlias { link: self.link, alias: alias.clone() }) {
            Ok(()) => self.alias = alias,
            Err(e) => {
                let device = crate::DEVICE;
                let message =
                    format!("the previous sysctl values could not be recorded in the alias of {device}: {e}");
                outcome.warnings.push(message);
            }
        }
    }
}

/// IPv6 sysctls are checked, not set: a host that forwards IPv6 ignores router advertisements by default, and could
/// lose its default route.
pub(crate) fn check_v6() -> SysctlOutcome {
    let off = fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding").is_ok_and(|v| v.trim() == "0");
    let message =
        "IPv6 is not forwarded, so IPv6 Services reach no endpoint: set net.ipv6.conf.all.forwarding to 1";
    SysctlOutcome { warnings: off.then(|| message.to_owned()).into_iter().collect(), fatal: None }
}

fn set(name: &str, value: &str, outcome: &mut SysctlOutcome) {
    if read(name).as_deref() == Some(value) {
        return;
    }
    let Err(e) = write(name, value) else { return };
    let full = format!("net.ipv4.{}", file(name).unwrap_or(name).replace('/', "."));
    let message = format!("{full} could not be set to {value}: {e}");
    if name == "conntrack" {
        outcome.fatal = Some(format!(
            "{message}: without it connections cannot be masqueraded (a kernel built without CONFIG_IP_VS_NFCT lacks it; in a container, the agent has to be privileged)"
        ));
    } else {
        outcome.warnings.push(message);
    }
}

/// The timeouts to set, if they differ from the current ones. The original ones are recorded.
fn record_timeouts(
    genl: &mut Genl,
    settings: &IpvsSettings,
    previous: &mut PreviousValues,
) -> Option<Timeouts> {
    let now = ipvs::timeouts(genl).ok()?;
    let original = previous.0.get(TIMEOUTS).and_then(|text| parse_timeouts(text)).unwrap_or(now);
    let wanted = Timeouts {
        tcp: settings.tcp_timeout.unwrap_or(original.tcp),
        tcp_fin: settings.tcp_fin_timeout.unwrap_or(original.tcp_fin),
        udp: settings.udp_timeout.unwrap_or(original.udp),
    };
    if wanted == original {
        previous.0.remove(TIMEOUTS);
    } else {
        previous
            .0
            .insert(TIMEOUTS.to_owned(), format!("{},{},{}", original.tcp, original.tcp_fin, original.udp));
    }
    (wanted != now).then_some(wanted)
}

fn parse_timeouts(text: &str) -> Option<Timeouts> {
    let mut numbers = text.split(',').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(Timeouts { tcp: next()?, tcp_fin: next()?, udp: next()? })
}

/// Restores the values recorded in the alias, of those sysctls that still have the value of this mode. Forwarding
/// stays on unless `restore_forwarding`, because the other modes need it too. Returns warnings.
pub(crate) fn restore(genl: Option<&mut Genl>, alias: &str, restore_forwarding: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let PreviousValues(previous) = PreviousValues::parse(alias);
    let timeouts = previous.get(TIMEOUTS).and_then(|text| parse_timeouts(text));
    if let (Some(genl), Some(timeouts)) = (genl, timeouts)
        && let Err(e) = ipvs::set_timeouts(genl, &timeouts)
    {
        warnings.push(e.to_string());
    }
    for (name, value) in wanted(&WITH_STRICT_ARP, linux()) {
        let Some(old) = previous.get(name).filter(|_| read(name).as_deref() == Some(value)) else { continue };
        if name == FORWARDING && !restore_forwarding {
            warnings.push(format!(
                "net.ipv4.ip_forward stays 1, though it was {old} before the ipvs mode: the next proxy mode needs forwarding too"
            ));
            continue;
        }
        match write(name, old) {
            Ok(()) if name == FORWARDING => warnings.push(format!(
                "net.ipv4.ip_forward was restored to {old}, its value before the ipvs mode: set it to 1 if another program needs forwarding"
            )),
            Ok(()) => {}
            Err(e) => warnings.push(format!("sysctl {name} could not be restored to {old}: {e}")),
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previous_values_can_be_parsed_and_fit_an_alias() {
        let mut previous = PreviousValues::default();
        FILES.iter().for_each(|(name, _)| drop(previous.0.insert((*name).to_owned(), "0".to_owned())));
        previous.0.insert(TIMEOUTS.to_owned(), "31536000,31536000,31536000".to_owned());
        let alias = previous.print();
        assert!(alias.len() < 256, "{} bytes: {alias}", alias.len());
        assert_eq!(PreviousValues::parse(&alias), previous);
        assert_eq!(PreviousValues::parse("another program's alias a=b"), PreviousValues::default());
        assert_eq!(PreviousValues::default().print(), "");
    }

    #[test]
    fn conn_reuse_mode_depends_on_the_kernel_version() {
        let reuse = |release: &str| {
            let all = wanted(&IpvsSettings::default(), parse_release(release));
            all.iter().find(|(name, _)| *name == "conn_reuse_mode").map(|(_, value)| *value)
        };
        for (release, value) in [("4.19.0-5-amd64", "0"), ("5.8.17", "0"), ("5.9", "1"), ("6.1.176\n", "1")] {
            assert_eq!(reuse(release), Some(value), "{release}");
        }
        assert_eq!(reuse("odd"), Some("1"));
    }

    #[test]
    fn strict_arp_sets_the_arp_sysctls() {
        let strict = IpvsSettings { strict_arp: true, ..IpvsSettings::default() };
        assert!(wanted(&strict, None).contains(&("arp_announce", "2")));
        assert!(!wanted(&IpvsSettings::default(), None).iter().any(|(name, _)| name.starts_with("arp")));
    }
}
