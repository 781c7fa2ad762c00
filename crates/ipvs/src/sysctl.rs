//! The kernel's settings that the mode needs. What they were before is written on our device, as its alias, for
//! a later cleanup: it lives as long as the mode's addresses do, and people see it with `ip link`.

use portway_dataplane::{IpvsSettings, Scheduler};
use portway_netlink::genl::Genl;
use portway_netlink::ipvs::{self, Timeouts};
use portway_netlink::route::{Change, Rtnetlink};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A setting, by its last name.
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
/// The name under which the three time-outs are remembered.
const TIMEOUTS: &str = "timeouts";
/// How the alias begins.
const NOTE: &str = "portway changed from ";

/// With all that may be set.
const STRICT: IpvsSettings = IpvsSettings {
    scheduler: Scheduler::RoundRobin,
    exclude: Vec::new(),
    strict_arp: true,
    tcp_timeout: None,
    tcp_fin_timeout: None,
    udp_timeout: None,
};

/// Where the kernel's settings of IPv4 are.
const DIRECTORY: &str = "/proc/sys/net/ipv4";

/// What became of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// What could not be set, in words.
    pub warnings: Vec<String>,
    /// The mode cannot work like this.
    pub impossible: Option<String>,
}

/// What settings were before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Before(BTreeMap<String, String>);

impl Before {
    fn parse(alias: &str) -> Before {
        let pairs = alias.strip_prefix(NOTE).unwrap_or_default().split(' ');
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        Before(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn print(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{NOTE}{}", pairs.join(" "))
    }
}

/// Whether an alias of our device is what we wrote there.
pub(crate) fn is_note(alias: &str) -> bool {
    alias.starts_with(NOTE)
}

/// The version of Linux, as far as it decides anything.
pub fn linux() -> Option<(u32, u32)> {
    parse_release(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

fn parse_release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What each setting should be. Since 5.9 a connection whose port is used again gets another endpoint without a delay of
/// a second; before, it is better to leave it with its old one.
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

/// The value of a setting while the mode needs it.
fn ours(name: &str) -> Option<&'static str> {
    wanted(&STRICT, linux()).into_iter().find(|(n, _)| *n == name).map(|(_, value)| value)
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

/// Sets what is needed and puts back what no longer is. `noted` is what we last wrote down, for the device that had it
/// may be gone.
pub(crate) fn prepare(
    route: &mut Rtnetlink,
    genl: &mut Genl,
    link: u32,
    settings: &IpvsSettings,
    noted: &mut String,
) -> Prepared {
    let mut prepared = Prepared::default();
    let mut note = Note::read(route, link);
    let mut before = Before::parse(if note.is_ours() { &note.alias } else { noted });
    let wanted = wanted(settings, linux());
    // What is to be changed is written down first: a run that is killed in between shall not lose it.
    for (name, value) in &wanted {
        if let Some(old) = read(name).filter(|old| old != value) {
            before.0.entry((*name).to_owned()).or_insert(old);
        }
    }
    let timeouts = remember_timeouts(genl, settings, &mut before);
    note.write(&before, noted, &mut prepared);
    for (name, value) in &wanted {
        set(name, value, &mut prepared);
    }
    if let Some(timeouts) = timeouts
        && let Err(e) = ipvs::set_timeouts(genl, &timeouts)
    {
        prepared.warnings.push(e.to_string());
    }
    before.0.retain(|name, old| {
        let stays = name == TIMEOUTS || wanted.iter().any(|(n, _)| n == name);
        let is_ours = || ours(name).is_some_and(|ours| read(name).as_deref() == Some(ours));
        if !stays
            && is_ours()
            && let Err(e) = write(name, old)
        {
            prepared.warnings.push(format!("{name} could not be put back to {old}: {e}"));
        }
        stays
    });
    note.write(&before, noted, &mut prepared);
    prepared
}

/// The alias of our device.
struct Note<'r> {
    route: &'r mut Rtnetlink,
    link: u32,
    alias: String,
}

impl Note<'_> {
    fn read(route: &mut Rtnetlink, link: u32) -> Note<'_> {
        let alias = route.link(crate::DEVICE).ok().flatten().and_then(|l| l.alias).unwrap_or_default();
        Note { route, link, alias }
    }

    fn is_ours(&self) -> bool {
        is_note(&self.alias)
    }

    /// Records the previous values of settings. An alias of another program is kept; the values are then logged once.
    fn write(&mut self, before: &Before, noted: &mut String, prepared: &mut Prepared) {
        let alias = before.print();
        let news = alias != *noted;
        noted.clone_from(&alias);
        if !self.alias.is_empty() && !self.is_ours() {
            if news && !alias.is_empty() {
                prepared.warnings.push(format!(
                    "{} has the alias of another program, so the previous values are recorded only here: {alias}",
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
                let words = format!("what sysctls were before could not be written down: {e}");
                prepared.warnings.push(words);
            }
        }
    }
}

/// Of IPv6 nothing is set: a machine that forwards no longer listens to routers, and may lose its own way out.
pub(crate) fn check_v6() -> Prepared {
    let off = fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding").is_ok_and(|v| v.trim() == "0");
    let words =
        "IPv6 is not forwarded, so Services reach no endpoint of it: set net.ipv6.conf.all.forwarding to 1";
    Prepared { warnings: off.then(|| words.to_owned()).into_iter().collect(), impossible: None }
}

fn set(name: &str, value: &str, prepared: &mut Prepared) {
    if read(name).as_deref() == Some(value) {
        return;
    }
    let Err(e) = write(name, value) else { return };
    let full = format!("net.ipv4.{}", file(name).unwrap_or(name).replace('/', "."));
    let words = format!("{full} could not be set to {value}: {e}");
    if name == "conntrack" {
        prepared.impossible = Some(format!(
            "{words}: without it nothing can be masqueraded (a kernel built without CONFIG_IP_VS_NFCT lacks it; in a container, the agent has to be privileged)"
        ));
    } else {
        prepared.warnings.push(words);
    }
}

/// The time-outs to set, if they are not so already; what they were is remembered.
fn remember_timeouts(genl: &mut Genl, settings: &IpvsSettings, before: &mut Before) -> Option<Timeouts> {
    let now = ipvs::timeouts(genl).ok()?;
    let first = before.0.get(TIMEOUTS).and_then(|text| parse_timeouts(text)).unwrap_or(now);
    let wanted = Timeouts {
        tcp: settings.tcp_timeout.unwrap_or(first.tcp),
        tcp_fin: settings.tcp_fin_timeout.unwrap_or(first.tcp_fin),
        udp: settings.udp_timeout.unwrap_or(first.udp),
    };
    if wanted == first {
        before.0.remove(TIMEOUTS);
    } else {
        before.0.insert(TIMEOUTS.to_owned(), format!("{},{},{}", first.tcp, first.tcp_fin, first.udp));
    }
    (wanted != now).then_some(wanted)
}

fn parse_timeouts(text: &str) -> Option<Timeouts> {
    let mut numbers = text.split(',').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(Timeouts { tcp: next()?, tcp_fin: next()?, udp: next()? })
}

/// Puts back what a device's alias has, if it still is what we made of it; what could not be comes back in words.
/// Forwarding goes off only `for_good`: another mode needs it as much.
pub(crate) fn put_back(genl: Option<&mut Genl>, alias: &str, for_good: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let Before(before) = Before::parse(alias);
    let timeouts = before.get(TIMEOUTS).and_then(|text| parse_timeouts(text));
    if let (Some(genl), Some(timeouts)) = (genl, timeouts)
        && let Err(e) = ipvs::set_timeouts(genl, &timeouts)
    {
        warnings.push(e.to_string());
    }
    for (name, ours) in wanted(&STRICT, linux()) {
        let Some(old) = before.get(name).filter(|_| read(name).as_deref() == Some(ours)) else { continue };
        if name == FORWARDING && !for_good {
            warnings.push(format!(
                "net.ipv4.ip_forward stays on, which it was not before the ipvs mode ({old}): the mode that follows needs it too"
            ));
            continue;
        }
        match write(name, old) {
            Ok(()) if name == FORWARDING => warnings.push(format!(
                "net.ipv4.ip_forward is {old} again, as it was before the ipvs mode: set it if something else needs it"
            )),
            Ok(()) => {}
            Err(e) => warnings.push(format!("sysctl {name} could not be put back to {old}: {e}")),
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_is_read_back_and_fits_an_alias() {
        let mut before = Before::default();
        FILES.iter().for_each(|(name, _)| drop(before.0.insert((*name).to_owned(), "0".to_owned())));
        before.0.insert(TIMEOUTS.to_owned(), "31536000,31536000,31536000".to_owned());
        let alias = before.print();
        assert!(alias.len() < 256, "{} bytes: {alias}", alias.len());
        assert_eq!(Before::parse(&alias), before);
        assert_eq!(Before::parse("another program's alias a=b"), Before::default());
        assert_eq!(Before::default().print(), "");
    }

    #[test]
    fn reuse_of_ports_depends_on_the_kernel() {
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
    fn arp_is_kept_quiet_if_asked() {
        let strict = IpvsSettings { strict_arp: true, ..IpvsSettings::default() };
        assert!(wanted(&strict, None).contains(&("arp_announce", "2")));
        assert!(!wanted(&IpvsSettings::default(), None).iter().any(|(name, _)| name.starts_with("arp")));
    }
}
