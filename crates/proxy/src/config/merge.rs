//! File and command line, joined by kube-proxy's rules.
//!
//! With a file, upstream ignores every configuration flag but those for the host name and for logging, and does not
//! say so (kubernetes/kubernetes#98302). The same flags count here, and the others are returned by name.

use super::domain::{Config, ModeName};
use super::flags::ProxyFlags;
use super::resolve::resolve;
use super::settings::table;
use portway_config::{ConfigError, Typed};
use portway_dataplane::Section;
use std::fmt;

/// Flags of one section of the configuration, by how they begin.
const SECTIONS: [(&str, Section); 4] = [
    ("--nftables-", Section::Nftables),
    ("--iptables-", Section::Iptables),
    ("--ipvs-", Section::Ipvs),
    ("--userspace-", Section::Userspace),
];

/// A flag that was given and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredFlag {
    /// The flag, with its dashes.
    pub flag: &'static str,
    /// Why it has none.
    pub why: WhyIgnored,
}

/// Why a flag has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyIgnored {
    /// A configuration file was given.
    ConfigFile {
        /// The field that does what the flag would do.
        field: &'static str,
    },
    /// It is for another mode.
    OtherMode(Section),
}

impl fmt::Display for IgnoredFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = self.flag;
        match &self.why {
            WhyIgnored::ConfigFile { field } => {
                write!(f, "{flag} has no effect beside --config: set {field} in the file instead")
            }
            WhyIgnored::OtherMode(section) => {
                write!(f, "{flag} has no effect: it is for mode {section}")
            }
        }
    }
}

/// What file and flags mean together, and which flags have no effect.
pub fn merge(
    flags: &ProxyFlags,
    file: Option<Typed>,
) -> Result<(Config, Vec<IgnoredFlag>), Vec<ConfigError>> {
    let mut typed = flags.settings.clone();
    let given = table().settings().iter().filter(|setting| flags.settings.has(setting.path));
    let given = given.filter_map(|setting| Some((setting, setting.flag_name()?)));
    let Some(mut file) = file else {
        let ignored = given.filter_map(|(_, flag)| for_another_mode(flag, &typed)).collect();
        return Ok((resolve(typed)?, ignored));
    };
    let (beside, ignored): (Vec<_>, Vec<_>) = given.partition(|(setting, _)| setting.beside_file);
    typed.retain(|path| beside.iter().any(|(setting, _)| setting.path == path));
    file.overlay(typed);
    let ignored = ignored.into_iter().map(|(setting, flag)| {
        let why = WhyIgnored::ConfigFile { field: setting.field() };
        IgnoredFlag { flag, why }
    });
    Ok((resolve(file)?, ignored.collect()))
}

/// Whether a flag is for another mode than the one that runs.
fn for_another_mode(flag: &'static str, typed: &Typed) -> Option<IgnoredFlag> {
    let (_, section) = SECTIONS.into_iter().find(|(prefix, _)| flag.starts_with(prefix))?;
    let named = typed.text("mode");
    let runs = named.and_then(|(name, _)| ModeName::parse(name)).unwrap_or_default().mode().section();
    let counts = match (flag, runs) {
        (_, runs) if runs == section => true,
        // Upstream has no such flags for nftables mode, and reads these.
        ("--iptables-sync-period", Section::Nftables) => !typed.has("nftables.syncPeriod"),
        ("--iptables-min-sync-period", Section::Nftables) => !typed.has("nftables.minSyncPeriod"),
        // Without a mode, the settings of iptables stand in for those of nftables: see `resolve`.
        ("--iptables-masquerade-bit", Section::Nftables) => {
            named.is_none() && !typed.has("nftables.masqueradeBit")
        }
        ("--iptables-masquerade-bit", Section::Ipvs | Section::Userspace) => true,
        _ => false,
    };
    (!counts).then_some(IgnoredFlag { flag, why: WhyIgnored::OtherMode(section) })
}

#[cfg(test)]
mod tests;
