//! Configuration: the settings of kube-proxy's file and flags, and what they mean.
//!
//! `settings` is the table with one definition per setting; `portway-config` reads files and flags by it, prints,
//! compares and documents. [`parse`] turns the text of a `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`,
//! YAML or JSON) and [`ProxyFlags`] the command line into the values as typed. [`merge()`] joins the two by upstream's
//! rules and gives a [`Config`] of domain types that cannot hold a wrong value; settings that depend on each other
//! are worked out in `resolve`.
//!
//! What always holds: no input causes a panic, mistakes are reported all at once with file, line and field, and
//! [`print::to_yaml`] of a `Config` parses back to the same `Config`.
//!
//! Where Portway differs from kube-proxy v1.36: an empty `mode` is nftables (upstream: iptables), there is a mode
//! `userspace` with a section and flags of its own, unknown fields are errors (upstream falls back to lenient
//! reading), and flags that a file overrides are listed in the log (kubernetes/kubernetes#98302).

mod domain;
mod flags;
mod merge;
mod parse;
mod resolve;
mod settings;

pub use domain::{
    ClientSettings, Config, ConntrackSettings, FamilyAddresses, IptablesSettings, IpvsSettings,
    LocalDetection, LogFormat, Logging, Masquerade, ModeName, NftablesSettings, NodePortAddresses,
    SyncPeriods, UserspaceSettings,
};
pub use flags::{ProxyFlags, RunFlags};
pub use merge::{IgnoredFlag, WhyIgnored, merge};
pub use portway_config::{Changes, ConfigError, Origin, Problem, Typed, normalize_args};
pub use settings::table;

/// The only `apiVersion` a configuration file may have.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The only `kind` a configuration file may have.
pub const KIND: &str = "KubeProxyConfiguration";

/// Reads a configuration file's text. All mistakes are reported at once, in the order of their lines.
pub fn parse(file_name: &str, text: &str) -> Result<Typed, Vec<ConfigError>> {
    table().read(file_name, text)
}

/// The settings that differ between two configurations.
pub fn diff_live(old: &Config, new: &Config) -> Changes {
    table().changes(old, new)
}

/// The new configuration as far as a running proxy can apply it; settings that need a restart keep the values it was
/// started with.
pub fn keep_started(started: &Config, mut new: Config) -> Config {
    table().keep_started(started, &mut new);
    new
}

/// A configuration written out again: as JSON for `/configz`, as YAML for `--write-config-to`.
///
/// Every setting is written, defaults too. Two things that only flags can say are not: `--master`, and that a server
/// is off (an empty address in a file is its default).
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
