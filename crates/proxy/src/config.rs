//! Configuration: kube-proxy's configuration file and flags, parsed into a [`Config`].
//!
//! `settings` is the table with one definition per setting; `portway-config` uses it to read files and flags, to
//! print and compare configurations, and to write the reference page. [`parse`] turns the text of a
//! `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`, YAML or JSON) and [`ProxyFlags`] the command line into
//! the values as typed. [`merge()`] joins the two by upstream's rules and returns a [`Config`] of domain types that
//! cannot hold an invalid value; `resolve` derives the settings that depend on others.
//!
//! Invariants: no input causes a panic, all errors are reported at once with file, line and field, and
//! [`print::to_yaml`] of a `Config` parses back to the same `Config`.
//!
//! Differences from kube-proxy v1.36: an empty `mode` is nftables with the defaults of iptables (upstream: iptables),
//! there is a mode `userspace` with its own section and flags, and flags that have no effect because of a file are logged
//! (kubernetes/kubernetes#98302).

mod domain;
mod feature_gates;
mod flags;
mod merge;
mod parse;
mod resolve;
mod settings;

pub use domain::{
    ClientSettings, Config, ConntrackSettings, FamilyAddresses, IptablesSettings, IpvsSettings,
    LocalDetection, LogFormat, Logging, Masquerade, ModeName, NftablesSettings, NodePortAddresses,
    SyncPeriods, UserspaceSettings, all_addresses,
};
pub use feature_gates::ALLOW_EXTERNAL_IPS;
pub use flags::{ProxyFlags, RunFlags, VersionFlag};
pub use merge::{IgnoredFlag, IgnoredReason, Warnings, merge};
pub use portway_config::{Changes, ConfigError, Origin, Problem, Typed, normalize_args};
pub use settings::table;

use portway_config::in_order;

/// The only valid `apiVersion` of a configuration file.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The only valid `kind` of a configuration file.
pub const KIND: &str = "KubeProxyConfiguration";

/// Parses the text of a configuration file. All errors are reported at once, in the order of their lines.
pub fn parse(file_name: &str, text: &str) -> Result<Typed, Vec<ConfigError>> {
    let (typed, errors) = table().read_partly(file_name, text)?;
    if errors.is_empty() { Ok(typed) } else { Err(errors) }
}

/// The configuration of the flags and of a file, by name and text. All mistakes are reported at once: fields that cannot be
/// read, invalid values, and then also unknown fields.
pub fn read(flags: &ProxyFlags, file: Option<(&str, &str)>) -> Result<(Config, Warnings), Vec<ConfigError>> {
    let file = file.map(|(name, text)| table().read_partly(name, text)).transpose()?;
    let (typed, mut errors) = file.map_or((None, Vec::new()), |(typed, errors)| (Some(typed), errors));
    let unknown = typed.as_ref().map(|typed| typed.mistakes().to_vec()).unwrap_or_default();
    match merge(flags, typed) {
        Ok(config) if errors.is_empty() => return Ok(config),
        Ok(_) => {}
        Err(more) => errors.extend(more),
    }
    errors.extend(unknown);
    Err(in_order(errors))
}

/// The settings that differ between two configurations.
pub fn diff_live(old: &Config, new: &Config) -> Changes {
    table().changes(old, new)
}

/// The new configuration as far as a running proxy can apply it: settings that need a restart keep the values that they
/// have in `running`.
pub fn keep_until_restart(running: &Config, mut new: Config) -> Config {
    table().keep_until_restart(running, &mut new);
    new
}

/// Prints a configuration: as JSON for `/configz`, as YAML for `--write-config-to`.
///
/// Every setting is printed, defaults too, except for two that only flags can set: `--master`, and the flags that turn
/// a server off (in a file an empty address means the default).
pub mod print {
    use super::{Config, table};

    /// The configuration as a `KubeProxyConfiguration` in YAML.
    pub fn to_yaml(config: &Config) -> Result<String, serde_saphyr::ser::Error> {
        serde_saphyr::to_string(&to_json(config))
    }

    /// The configuration as a `KubeProxyConfiguration` in JSON.
    pub fn to_json(config: &Config) -> serde_json::Value {
        table().to_json(config)
    }
}

#[cfg(test)]
mod tests;
