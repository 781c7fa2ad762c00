//! Configuration: what kube-proxy's file and flags say, and what they mean.
//!
//! Two steps, each a pure function. *As typed*: [`parse`] turns the text of a `KubeProxyConfiguration`
//! (`kubeproxy.config.k8s.io/v1alpha1`, YAML or JSON) and [`ProxyFlags`] the command line into a [`FileConfig`],
//! where every field is optional and remembers its line or flag. *As meant*: [`merge()`] joins the two by upstream's
//! rules, fills in the defaults and gives a [`Config`] of domain types that cannot hold a wrong value.
//!
//! What always holds: nothing here panics on any input, mistakes are reported all at once with file, line and
//! field, and [`print::to_yaml`] of a `Config` parses back to the same `Config`.
//!
//! Where Portway differs from kube-proxy v1.36: an empty `mode` is nftables (upstream: iptables), there is a mode
//! `userspace` with a section and flags of its own, unknown fields are errors (upstream falls back to lenient
//! reading), and flags that a file overrides are listed instead of being dropped without a word
//! (kubernetes/kubernetes#98302).

mod check;
mod domain;
mod duration;
mod error;
mod file;
mod flags;
mod live;
mod merge;
pub mod print;
mod resolve;
mod section;
mod tree;

pub use domain::{
    ClientSettings, Config, ConntrackSettings, FamilyAddresses, IptablesSettings, IpvsSettings,
    LocalDetection, LogFormat, Logging, Masquerade, Mode, NftablesSettings, NodePortAddresses, SyncPeriods,
    UserspaceSettings,
};
pub use duration::{InvalidDuration, format_duration, parse_duration};
pub use error::{ConfigError, Origin, Problem};
pub use file::{
    ClientConnectionSection, ConntrackSection, DetectLocalSection, Field, FileConfig, Given, IptablesSection,
    IpvsSection, LoggingSection, NftablesSection, UserspaceSection, WinkernelSection, parse,
};
pub use flags::{ProxyFlags, normalize_args};
pub use live::{LiveChange, diff_live, keep_started};
pub use merge::{IgnoredFlag, WhyIgnored, merge};

/// The only `apiVersion` a configuration file may have.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The only `kind` a configuration file may have.
pub const KIND: &str = "KubeProxyConfiguration";
