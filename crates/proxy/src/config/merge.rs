//! File and command line, joined by kube-proxy's rules.
//!
//! With a file, upstream ignores every configuration flag but those for the host name and for logging, and says
//! nothing (kubernetes/kubernetes#98302). The same flags are heard here, and the others are handed back by name.

use super::domain::{Config, Mode};
use super::error::ConfigError;
use super::file::FileConfig;
use super::flags::{ProxyFlags, TypedFlag};
use super::resolve::resolve;
use std::fmt;

/// Flags that are heard beside a file.
const HEARD_BESIDE_FILE: [&str; 5] =
    ["--hostname-override", "--v", "--vmodule", "--logging-format", "--log-flush-frequency"];

/// Flags that only another mode reads. The sync periods of iptables mode are not among them: they are heard by
/// nftables mode too.
const MODES: [(&str, Mode); 4] = [
    ("--nftables-", Mode::Nftables),
    ("--iptables-", Mode::Iptables),
    ("--ipvs-", Mode::Ipvs),
    ("--userspace-", Mode::Userspace),
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
    OtherMode(Mode),
}

impl fmt::Display for IgnoredFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = self.flag;
        match &self.why {
            WhyIgnored::ConfigFile { field } => {
                write!(f, "{flag} has no effect beside --config: set {field} in the file instead")
            }
            WhyIgnored::OtherMode(mode) => {
                write!(f, "{flag} has no effect: it is for mode {}", mode.as_str())
            }
        }
    }
}

/// Says what file and flags together mean, and which flags have no effect.
pub fn merge(
    flags: &ProxyFlags,
    file: Option<FileConfig>,
) -> Result<(Config, Vec<IgnoredFlag>), Vec<ConfigError>> {
    let typed = flags.typed();
    let (config, ignored) = match file {
        Some(file) => {
            let unheard = typed.given.iter().filter(|given| !HEARD_BESIDE_FILE.contains(&given.flag));
            let ignored = unheard.map(|TypedFlag { flag, field }| {
                let why = WhyIgnored::ConfigFile { field };
                IgnoredFlag { flag, why }
            });
            (overlay(file, typed.config), ignored.collect())
        }
        None => {
            let ignored = typed.given.iter().filter_map(|given| for_another_mode(given.flag, &typed.config));
            let ignored = ignored.collect();
            (typed.config, ignored)
        }
    };
    Ok((resolve(&config, flags.master.clone())?, ignored))
}

/// The file, with the flags that are heard beside it.
fn overlay(mut file: FileConfig, flags: FileConfig) -> FileConfig {
    let hostname = flags.hostname_override.filter(|given| !given.value.is_empty());
    file.hostname_override = hostname.or(file.hostname_override);
    let logging = &mut file.logging;
    logging.verbosity = flags.logging.verbosity.or(logging.verbosity.take());
    logging.format = flags.logging.format.or(logging.format.take());
    logging.flush_frequency = flags.logging.flush_frequency.or(logging.flush_frequency.take());
    // Earlier entries win, so the flags' come first.
    let from_file = std::mem::replace(&mut logging.vmodule, flags.logging.vmodule);
    logging.vmodule.extend(from_file);
    file
}

/// Whether a flag is for another mode than the one that runs.
fn for_another_mode(flag: &'static str, typed: &FileConfig) -> Option<IgnoredFlag> {
    let (_, mode) = MODES.into_iter().find(|(prefix, _)| flag.starts_with(prefix))?;
    let named = typed.mode.as_ref().filter(|given| !given.value.is_empty());
    let runs = named.and_then(|given| Mode::ALL.into_iter().find(|mode| mode.as_str() == given.value));
    let nftables = &typed.nftables;
    let heard = match (flag, runs.unwrap_or(Mode::Nftables)) {
        (_, runs) if runs == mode => true,
        ("--iptables-sync-period", Mode::Nftables) => nftables.sync_period == typed.iptables.sync_period,
        ("--iptables-min-sync-period", Mode::Nftables) => {
            nftables.min_sync_period == typed.iptables.min_sync_period
        }
        // Without a mode, what is said of iptables stands in for nftables: see `resolve`.
        ("--iptables-masquerade-bit", Mode::Nftables) => named.is_none() && nftables.masquerade_bit.is_none(),
        ("--iptables-masquerade-bit", Mode::Ipvs | Mode::Userspace) => true,
        _ => false,
    };
    (!heard).then_some(IgnoredFlag { flag, why: WhyIgnored::OtherMode(mode) })
}

#[cfg(test)]
mod tests;
