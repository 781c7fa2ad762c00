//! A configuration as meant: domain types that cannot hold a wrong value.

use crate::modes::{self, MODES};
use ipnet::IpNet;
use portway_dataplane::{Balancing, Mode, Scheduler, Section};
use portway_model::Family;
pub use portway_serve::LogFormat;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Everything the node agent needs to know before it starts, defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The proxy mode.
    pub mode: ModeName,
    /// This node's name, if it is not to be its host name. Trimmed and in lower case.
    pub hostname_override: Option<String>,
    /// `bindAddress`. Nothing is bound to it: see [`Config::node_ip_override`].
    pub bind_address: IpAddr,
    /// Where `/healthz` and `/livez` are served; `None` if not at all.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` is served; `None` if not at all.
    pub metrics: Option<SocketAddr>,
    /// Whether an address in use is the end of the process.
    pub bind_hard_fail: bool,
    /// `enableProfiling`; accepted, and there are no profiling pages.
    pub profiling: bool,
    /// `showHiddenMetricsForVersion`; accepted, and no metric is hidden.
    pub show_hidden_metrics_for_version: Option<String>,
    /// How to reach the API server.
    pub client: ClientSettings,
    /// How traffic from this node's own pods is told from the rest.
    pub local_detection: LocalDetection,
    /// On which of the node's addresses node ports answer.
    pub node_port_addresses: NodePortAddresses,
    /// `configSyncPeriod`: how often upstream's informers replay what they hold.
    pub config_sync_period: Duration,
    /// Kernel settings for connection tracking.
    pub conntrack: ConntrackSettings,
    /// `oom_score_adj` of this process, -1000 to 1000.
    pub oom_score_adj: i16,
    /// Logging.
    pub logging: Logging,
    /// Feature gates as given; Portway has none of its own yet.
    pub feature_gates: BTreeMap<String, bool>,
    /// Settings of nftables mode.
    pub nftables: NftablesSettings,
    /// Settings of iptables mode.
    pub iptables: IptablesSettings,
    /// Settings of ipvs mode, kept for `--write-config-to` and `/configz`.
    pub ipvs: IpvsSettings,
    /// Settings of userspace mode.
    pub userspace: UserspaceSettings,
}

impl Config {
    /// Every setting at its default, except those that depend on others, which `resolve` works out.
    pub(super) fn defaults() -> Config {
        // The values here are blanks: the table has the defaults.
        let mut config = Config {
            mode: ModeName::default(),
            hostname_override: None,
            bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            healthz: None,
            metrics: None,
            bind_hard_fail: false,
            profiling: false,
            show_hidden_metrics_for_version: None,
            client: ClientSettings::default(),
            local_detection: LocalDetection::None,
            node_port_addresses: NodePortAddresses::Primary,
            config_sync_period: Duration::ZERO,
            conntrack: ConntrackSettings::default(),
            oom_score_adj: 0,
            logging: Logging::default(),
            feature_gates: BTreeMap::new(),
            nftables: NftablesSettings::default(),
            iptables: IptablesSettings::default(),
            ipvs: IpvsSettings::default(),
            userspace: UserspaceSettings::default(),
        };
        super::table().set_defaults(&mut config);
        config
    }

    /// The node's primary address, if `bindAddress` names one. The name is history: nothing is bound to it.
    pub fn node_ip_override(&self) -> Option<IpAddr> {
        (!self.bind_address.is_unspecified()).then_some(self.bind_address)
    }

    /// The mode that is configured.
    pub fn mode(&self) -> &'static dyn Mode {
        self.mode.mode()
    }

    /// How long an update may wait before `/healthz` calls the proxy sick: twice the sync period, as upstream.
    pub fn health_timeout(&self) -> Duration {
        self.sync().period.saturating_mul(2)
    }

    /// Source addresses, in the mode that runs. Only nftables mode has settings of its own for them.
    pub fn masquerade(&self) -> Masquerade {
        match self.mode().section() {
            Section::Nftables => self.nftables.masquerade,
            Section::Iptables | Section::Ipvs | Section::Userspace => self.iptables.masquerade,
        }
    }

    /// The pace of syncs in the mode that runs.
    pub fn sync(&self) -> SyncPeriods {
        match self.mode().section() {
            Section::Nftables => self.nftables.sync,
            Section::Iptables => self.iptables.sync,
            Section::Ipvs => self.ipvs.sync,
            Section::Userspace => self.userspace.sync,
        }
    }

    /// Whether node ports answer at 127.0.0.1.
    pub fn localhost_node_ports(&self) -> bool {
        self.mode().features().localhost_node_ports && self.iptables.localhost_node_ports
    }
}

/// The name of a mode in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeName(&'static str);

impl ModeName {
    /// The mode of this name, if the registry has one.
    pub fn parse(text: &str) -> Option<ModeName> {
        modes::find(text).map(|mode| ModeName(mode.name()))
    }

    /// The name as `mode:` and `--proxy-mode` have it.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// The mode.
    pub fn mode(self) -> &'static dyn Mode {
        modes::find(self.0).unwrap_or(MODES[0])
    }
}

impl Default for ModeName {
    /// The first of the registry.
    fn default() -> ModeName {
        ModeName(MODES[0].name())
    }
}

/// How to reach the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientSettings {
    /// Without one (and without `master`) the pod's service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// The API server's address, over the kubeconfig's.
    pub master: Option<String>,
    /// `acceptContentTypes`; empty for the default.
    pub accept_content_types: String,
    /// `contentType` of requests.
    pub content_type: String,
    /// Requests per second; negative for no limit.
    pub qps: f32,
    /// Requests at once above `qps`.
    pub burst: u32,
}

/// How traffic from local pods is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetection {
    /// Not at all: `ClusterCIDR` without a `clusterCIDR`. No traffic is masqueraded for coming from outside.
    None,
    /// By source address in these ranges, at most one per family.
    ClusterCidr(Vec<IpNet>),
    /// By source address in the Node's `podCIDRs`.
    NodeCidr,
    /// By arriving on this bridge.
    BridgeInterface(String),
    /// By arriving on an interface whose name begins so.
    InterfaceNamePrefix(String),
}

/// On which addresses of the node its node ports answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The Node object's primary address of each family: nftables mode's default. Other modes answer everywhere.
    Primary,
    /// The node's addresses within these ranges; a family without a range answers on all of its addresses.
    Cidrs(Vec<IpNet>),
}

/// [`NodePortAddresses`] for one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilyAddresses {
    /// The Node's primary address.
    Primary,
    /// Every address.
    All,
    /// Addresses within these ranges.
    Cidrs(Vec<IpNet>),
}

impl NodePortAddresses {
    /// What holds for one family.
    pub fn of_family(&self, family: Family) -> FamilyAddresses {
        let NodePortAddresses::Cidrs(cidrs) = self else { return FamilyAddresses::Primary };
        let cidrs: Vec<IpNet> =
            cidrs.iter().copied().filter(|net| Family::of(net.addr()) == family).collect();
        if cidrs.is_empty() || cidrs.iter().any(|net| net.prefix_len() == 0) {
            return FamilyAddresses::All;
        }
        FamilyAddresses::Cidrs(cidrs)
    }
}

/// Source addresses: what is masqueraded, and the mark that says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Masquerade everything sent to cluster IPs.
    pub all: bool,
    /// The bit of the packet mark, 0 to 31.
    pub bit: u8,
}

impl Masquerade {
    /// The packet mark: bit 14 is `0x4000`.
    pub fn mark(self) -> u32 {
        1u32.checked_shl(self.bit.into()).unwrap_or(0)
    }
}

/// The pace of syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncPeriods {
    /// How often everything is looked over though nothing changed.
    pub period: Duration,
    /// The least time between two syncs; `None` if none was asked for (0 counts as none), and then the proxy
    /// paces itself more finely than upstream's 1 s.
    pub min: Option<Duration>,
}

/// Connection tracking in the kernel. `None` and zero leave the kernel's own value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// Table entries per core; zero leaves the limit alone and `min` unread.
    pub max_per_core: u32,
    /// Table entries at least.
    pub min: u32,
    /// How long an idle established TCP connection is kept.
    pub tcp_established: Option<Duration>,
    /// How long a half-closed one is.
    pub tcp_close_wait: Option<Duration>,
    /// Whether packets outside the window are let pass.
    pub tcp_be_liberal: bool,
    /// How long a UDP flow without a reply is kept.
    pub udp: Option<Duration>,
    /// How long one with replies is.
    pub udp_stream: Option<Duration>,
}

impl ConntrackSettings {
    /// The default of `tcpEstablishedTimeout`.
    pub const DEFAULT_TCP_ESTABLISHED: Duration = Duration::from_secs(24 * 60 * 60);
    /// The default of `tcpCloseWaitTimeout` (kubernetes/kubernetes#32551 tells why an hour).
    pub const DEFAULT_TCP_CLOSE_WAIT: Duration = Duration::from_secs(60 * 60);
}

/// Logging.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// Text or JSON.
    pub format: LogFormat,
    /// klog's `-v`: 0 and upwards.
    pub verbosity: u32,
    /// Verbosity for single files, by pattern; later entries give way to earlier ones.
    pub vmodule: Vec<(String, u32)>,
    /// `flushFrequency`; accepted, and nothing is buffered.
    pub flush_frequency: Duration,
}

/// Settings of nftables mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NftablesSettings {
    /// Source addresses.
    pub masquerade: Masquerade,
    /// The pace of syncs.
    pub sync: SyncPeriods,
}

/// Settings of iptables mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IptablesSettings {
    /// Source addresses.
    pub masquerade: Masquerade,
    /// Whether node ports answer on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// The pace of syncs.
    pub sync: SyncPeriods,
}

/// Settings of ipvs mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsSettings {
    /// The pace of syncs.
    pub sync: SyncPeriods,
    /// The scheduler.
    pub scheduler: Scheduler,
    /// Virtual servers within these ranges are not ours to remove.
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether `arp_ignore` and `arp_announce` are set.
    pub strict_arp: bool,
    /// Idle TCP sessions; zero leaves the kernel's value.
    pub tcp_timeout: Duration,
    /// TCP sessions after a FIN; zero leaves the kernel's value.
    pub tcp_fin_timeout: Duration,
    /// UDP sessions; zero leaves the kernel's value.
    pub udp_timeout: Duration,
}

/// Settings of userspace mode, where a relay process accepts connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserspaceSettings {
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// How long an endpoint may take to accept a connection, before the next one is tried; never zero.
    pub connect_timeout: Duration,
    /// How many endpoints are tried for one connection, 1 to 100.
    pub connect_attempts: u32,
    /// How long connections may go on whose endpoint has left; zero ends them at once.
    pub drain_timeout: Duration,
    /// How long connections may go on when the agent is told to stop; zero ends them at once.
    pub stop_timeout: Duration,
    /// How long a UDP session may be silent; never zero.
    pub udp_timeout: Duration,
    /// How many UDP sessions there may be, 1 to 1,000,000.
    pub udp_sessions: u32,
    /// The pace of syncs.
    pub sync: SyncPeriods,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_without_a_range_answers_everywhere() {
        let nets =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|t| t.parse().expect("a CIDR")).collect() };
        let cidrs = |texts: &[&str]| NodePortAddresses::Cidrs(nets(texts));
        assert_eq!(NodePortAddresses::Primary.of_family(Family::V4), FamilyAddresses::Primary);
        assert_eq!(NodePortAddresses::Primary.of_family(Family::V6), FamilyAddresses::Primary);
        assert_eq!(
            cidrs(&["10.0.0.0/8"]).of_family(Family::V4),
            FamilyAddresses::Cidrs(nets(&["10.0.0.0/8"]))
        );
        assert_eq!(cidrs(&["10.0.0.0/8"]).of_family(Family::V6), FamilyAddresses::All);
        assert_eq!(
            cidrs(&["10.0.0.0/8", "0.0.0.0/0", "fd00::/8"]).of_family(Family::V4),
            FamilyAddresses::All
        );
        assert_eq!(
            cidrs(&["10.0.0.0/8", "fd00::/8"]).of_family(Family::V6),
            FamilyAddresses::Cidrs(nets(&["fd00::/8"]))
        );
    }

    #[test]
    fn the_default_mark_is_the_one_administrators_know() {
        assert_eq!(Masquerade { all: false, bit: 14 }.mark(), 0x4000);
        assert_eq!(Masquerade { all: false, bit: 31 }.mark(), 0x8000_0000);
    }
}
