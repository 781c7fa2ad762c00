//! Merges file and command line by kube-proxy's rules.
//!
//! With a file, upstream silently ignores every configuration flag except those for the host name, the API server's
//! address and logging (kubernetes/kubernetes#98302). The same flags apply here, and the others are returned.

use super::domain::{Config, ModeName};
use super::flags::ProxyFlags;
use super::resolve::resolve;
use super::settings::table;
use portway_config::{ConfigError, Given, Origin, Typed, Value};
use portway_dataplane::Section;
use std::fmt;

/// The prefix of the flags of each section.
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
    /// The reason.
    pub reason: IgnoredReason,
}

/// The reason that a flag has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IgnoredReason {
    /// A configuration file was given.
    ConfigFile {
        /// The field of the file that has the effect of the flag.
        field: &'static str,
    },
    /// The flag is for another mode.
    OtherMode(Section),
}

impl fmt::Display for IgnoredFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = self.flag;
        match &self.reason {
            IgnoredReason::ConfigFile { field } => {
                write!(f, "{flag} has no effect together with --config: set {field} in the file instead")
            }
            IgnoredReason::OtherMode(section) => {
                write!(f, "{flag} has no effect: it is for mode {section}")
            }
        }
    }
}

/// What the log says about a configuration that can be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Warnings {
    /// Unknown and duplicate fields of the file.
    pub mistakes: Vec<ConfigError>,
    /// Flags that have no effect.
    pub ignored_flags: Vec<IgnoredFlag>,
    /// Fields and flags that kube-proxy has, and that have no effect in Portway.
    pub unused: Vec<String>,
    /// Neither file nor flags have a mode.
    pub without_mode: bool,
}

impl Warnings {
    fn of(typed: &Typed) -> Warnings {
        let name = |given: &Given<Value>| match given.origin {
            Origin::Flag(flag) => flag.to_owned(),
            Origin::File { .. } => given.field.to_owned(),
        };
        Warnings {
            mistakes: typed.mistakes().to_vec(),
            ignored_flags: Vec::new(),
            unused: table().unused(typed).into_iter().map(name).collect(),
            without_mode: typed.text("mode").is_none(),
        }
    }
}

/// Merges file and flags. Returns the configuration, and what the log says about it.
pub fn merge(flags: &ProxyFlags, file: Option<Typed>) -> Result<(Config, Warnings), Vec<ConfigError>> {
    let mut typed = flags.settings.clone();
    let given = table().settings().iter().filter(|setting| flags.settings.has(setting.path));
    let given = given.filter_map(|setting| Some((setting, setting.flag_name()?)));
    let Some(mut file) = file else {
        let ignored_flags = given.filter_map(|(_, flag)| for_another_mode(flag, &typed)).collect();
        let warnings = Warnings { ignored_flags, ..Warnings::of(&typed) };
        return Ok((resolve(typed)?, warnings));
    };
    let (applied, ignored): (Vec<_>, Vec<_>) = given.partition(|(setting, _)| setting.with_file);
    typed.retain(|path| applied.iter().any(|(setting, _)| setting.path == path));
    file.overlay(typed);
    let ignored = ignored.into_iter().map(|(setting, flag)| {
        let reason = IgnoredReason::ConfigFile { field: setting.field() };
        IgnoredFlag { flag, reason }
    });
    let warnings = Warnings { ignored_flags: ignored.collect(), ..Warnings::of(&file) };
    Ok((resolve(file)?, warnings))
}

/// The flag as an [`IgnoredFlag`], if it is for another mode than the configured one.
fn for_another_mode(flag: &'static str, typed: &Typed) -> Option<IgnoredFlag> {
    let (_, section) = SECTIONS.into_iter().find(|(prefix, _)| flag.starts_with(prefix))?;
    let named = typed.text("mode");
    let configured = named.and_then(|(name, _)| ModeName::parse(name)).unwrap_or_default().mode().section();
    let applies = match (flag, configured) {
        (_, configured) if configured == section => true,
        // Upstream has no such flags for nftables mode, and uses these.
        ("--iptables-sync-period", Section::Nftables) => !typed.has("nftables.syncPeriod"),
        ("--iptables-min-sync-period", Section::Nftables) => !typed.has("nftables.minSyncPeriod"),
        // Without a mode, the settings of iptables apply to nftables mode: see `resolve`.
        ("--iptables-masquerade-bit", Section::Nftables) => {
            named.is_none() && !typed.has("nftables.masqueradeBit")
        }
        ("--iptables-masquerade-bit", Section::Ipvs | Section::Userspace) => true,
        ("--iptables-localhost-nodeports", Section::Nftables) => named.is_none(),
        _ => false,
    };
    (!applies).then_some(IgnoredFlag { flag, reason: IgnoredReason::OtherMode(section) })
}

#[cfg(test)]
mod tests;
