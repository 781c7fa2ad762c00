//! kube-proxy's command line, flag for flag, and Portway's own few.
//!
//! Every configuration flag is an `Option`: `None` is "not typed", so that the file and the defaults can have
//! their say. What pflag accepts is accepted: `--masquerade-all` and `--masquerade-all=true`, lists with commas or
//! by repetition, the last of several values, and (through [`normalize_args`]) underscores for dashes.

mod typed;
mod value;

pub(super) use typed::TypedFlag;

use clap::{ArgAction, Parser};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use value::{BOOL, go_bool, go_duration};

const EXAMPLES: &str = "\
Examples:
  On a node of a cluster, with the configuration that kubeadm writes:
      kube-proxy --config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)

  The same, by flags only:
      kube-proxy --kubeconfig=/var/lib/kube-proxy/kubeconfig.conf --cluster-cidr=10.244.0.0/16

  Without any cluster, Services and EndpointSlices from files:
      kube-proxy --manifests=./manifests --hostname-override=node-1

  See what all settings come to, then remove every rule again:
      kube-proxy --cluster-cidr=10.244.0.0/16 --write-config-to=/dev/stdout
      kube-proxy --cleanup";

/// Runs the Kubernetes Service proxy on this node, in place of kube-proxy.
///
/// Watches Services and EndpointSlices and programs the kernel so that a Service's addresses reach its endpoints.
/// Beside --config only the flags for the host name, the API server's address and logging are heard; the others
/// are named in the log and ignored.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "kube-proxy", args_override_self = true, disable_version_flag = true, after_help = EXAMPLES)]
pub struct ProxyFlags {
    /// The configuration file, a KubeProxyConfiguration in YAML or JSON; changes are applied while running.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub config: Option<PathBuf>,
    /// Write the effective configuration to this file and exit.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub write_config_to: Option<PathBuf>,
    /// Take Services, EndpointSlices and Nodes from the manifests in this directory, not from an API server.
    #[arg(long, value_name = "DIR", help_heading = "Configuration")]
    pub manifests: Option<PathBuf>,
    /// Switch features on or off, as Name=true,Other=false.
    #[arg(long, value_name = "NAME=BOOL", value_delimiter = ',', action = ArgAction::Append,
          value_parser = value::gate, help_heading = "Configuration")]
    pub feature_gates: Vec<(String, bool)>,

    /// Remove every rule this proxy could have made, and exit.
    #[arg(long, help_heading = "Single tasks", value_parser = go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = BOOL)]
    pub cleanup: Option<bool>,
    /// Do what needs full privileges, and exit; then CAP_NET_ADMIN alone is enough to run.
    #[arg(long, help_heading = "Single tasks", value_parser = go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = BOOL)]
    pub init_only: Option<bool>,
    /// Print the version and exit.
    #[arg(long, help_heading = "Single tasks", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "true|raw")]
    pub version: Option<String>,

    /// The kubeconfig to reach the API server with; without one, the pod's service account.
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes API")]
    pub kubeconfig: Option<String>,
    /// The API server's address, over the one in the kubeconfig.
    #[arg(long, value_name = "URL", help_heading = "Kubernetes API")]
    pub master: Option<String>,
    /// Requests to the API server per second.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Kubernetes API")]
    pub kube_api_qps: Option<f32>,
    /// Requests to the API server at once, above the rate.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Kubernetes API")]
    pub kube_api_burst: Option<i64>,
    /// The encoding of requests to the API server.
    #[arg(long, value_name = "TYPE", help_heading = "Kubernetes API")]
    pub kube_api_content_type: Option<String>,
    /// How often what the API server said is gone through again.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Kubernetes API")]
    pub config_sync_period: Option<Duration>,

    /// This node's name, if it is not its host name.
    #[arg(long, value_name = "NAME", help_heading = "Node")]
    pub hostname_override: Option<String>,
    /// This node's primary address, if not the one in its Node object; nothing is bound to it.
    #[arg(long, value_name = "IP", help_heading = "Node")]
    pub bind_address: Option<String>,
    /// Node ports answer on addresses in these ranges, or on the Node's own: 'primary', which is nftables mode's default; in others they answer everywhere.
    #[arg(long, value_name = "CIDR|primary", value_delimiter = ',', action = ArgAction::Append,
          help_heading = "Node")]
    pub nodeport_addresses: Vec<String>,
    /// How dear this process is to the kernel when memory runs out, -1000 (keep) to 1000.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Node")]
    pub oom_score_adj: Option<i64>,

    /// How Services are programmed: nftables, the default, iptables, ipvs or userspace, where a process of
    /// Portway's own carries the connections. It may change while running.
    #[arg(long, value_name = "MODE", help_heading = "Proxy")]
    pub proxy_mode: Option<String>,
    /// Masquerade everything sent to cluster IPs, as some network plugins need.
    #[arg(long, help_heading = "Proxy", value_parser = go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = BOOL)]
    pub masquerade_all: Option<bool>,
    /// How local pods are told from the rest: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
    #[arg(long, value_name = "MODE", help_heading = "Proxy")]
    pub detect_local_mode: Option<String>,
    /// The pods' address range, or one of each family: 10.244.0.0/16,fd00:10:244::/56.
    #[arg(long, value_name = "CIDR[,CIDR]", help_heading = "Proxy")]
    pub cluster_cidr: Option<String>,
    /// With BridgeInterface: the bridge that local pods hang on.
    #[arg(long, value_name = "NAME", help_heading = "Proxy")]
    pub pod_bridge_interface: Option<String>,
    /// With InterfaceNamePrefix: how the names of local pods' interfaces begin.
    #[arg(long, value_name = "PREFIX", help_heading = "Proxy")]
    pub pod_interface_name_prefix: Option<String>,

    /// The bit of the packet mark that means masquerade, 0 to 31.
    #[arg(long, value_name = "BIT", allow_negative_numbers = true, help_heading = "Mode nftables")]
    pub nftables_masquerade_bit: Option<i64>,
    /// How often everything is looked over though nothing changed.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode nftables")]
    pub nftables_sync_period: Option<Duration>,
    /// The least time between two syncs; without it, changes are written as they come.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode nftables")]
    pub nftables_min_sync_period: Option<Duration>,

    /// The bit of the packet mark that means masquerade, 0 to 31.
    #[arg(long, value_name = "BIT", allow_negative_numbers = true, help_heading = "Mode iptables")]
    pub iptables_masquerade_bit: Option<i64>,
    /// Whether node ports answer on 127.0.0.1.
    #[arg(long, help_heading = "Mode iptables", value_parser = go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = BOOL)]
    pub iptables_localhost_nodeports: Option<bool>,
    /// How often everything is looked over though nothing changed; heard by nftables mode too.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode iptables")]
    pub iptables_sync_period: Option<Duration>,
    /// The least time between two syncs; heard by nftables mode too.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode iptables")]
    pub iptables_min_sync_period: Option<Duration>,

    /// How often everything is looked over though nothing changed.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode ipvs")]
    pub ipvs_sync_period: Option<Duration>,
    /// The least time between two syncs.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode ipvs")]
    pub ipvs_min_sync_period: Option<Duration>,
    /// How an endpoint is chosen: rr, wrr, lc, wlc, sed, nq, sh, dh, mh, lblc, lblcr, fo or ovf. A Service may ask for another
    /// one by its annotation portway.dev/ipvs-scheduler.
    #[arg(long, value_name = "NAME", help_heading = "Mode ipvs")]
    pub ipvs_scheduler: Option<String>,
    /// Leave virtual servers with addresses in these ranges alone: they are somebody else's.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', action = ArgAction::Append, help_heading = "Mode ipvs")]
    pub ipvs_exclude_cidrs: Vec<String>,
    /// Answer ARP only for addresses of the interface that was asked.
    #[arg(long, help_heading = "Mode ipvs", value_parser = go_bool, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = BOOL)]
    pub ipvs_strict_arp: Option<bool>,
    /// Forget idle TCP sessions after this long; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode ipvs")]
    pub ipvs_tcp_timeout: Option<Duration>,
    /// Forget TCP sessions this long after a FIN; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode ipvs")]
    pub ipvs_tcpfin_timeout: Option<Duration>,
    /// Forget UDP sessions after this long; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode ipvs")]
    pub ipvs_udp_timeout: Option<Duration>,

    /// How an endpoint is chosen: round-robin, the default, or least-connections, the one with the fewest through this node.
    #[arg(long, value_name = "NAME", help_heading = "Mode userspace")]
    pub userspace_balancing: Option<String>,
    /// How long an endpoint may take to accept a connection before the next one is tried, by default 1s.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode userspace")]
    pub userspace_connect_timeout: Option<Duration>,
    /// How many endpoints are tried for one connection before it is given up, 1 to 100, by default 4.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Mode userspace")]
    pub userspace_connect_attempts: Option<i64>,
    /// How long connections may go on whose endpoint has left, by default 10m; 0 ends them at once.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode userspace")]
    pub userspace_drain_timeout: Option<Duration>,
    /// In a container, where everything ends with the agent: how long it waits for open connections when it is told to stop, by
    /// default 20s; 0 ends them at once. A pod's terminationGracePeriodSeconds should be longer.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode userspace")]
    pub userspace_stop_timeout: Option<Duration>,
    /// Forget UDP sessions after this long without a packet, by default 2m.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode userspace")]
    pub userspace_udp_idle_timeout: Option<Duration>,
    /// How many UDP sessions there may be at once, 1 to 1000000, by default 16384.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Mode userspace")]
    pub userspace_max_udp_sessions: Option<i64>,
    /// How often everything is looked over though nothing changed.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode userspace")]
    pub userspace_sync_period: Option<Duration>,
    /// The least time between two syncs.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Mode userspace")]
    pub userspace_min_sync_period: Option<Duration>,

    /// Connections to track per core; 0 leaves the kernel's limit.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Connection tracking")]
    pub conntrack_max_per_core: Option<i64>,
    /// Connections to track at least, however few the cores.
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Connection tracking")]
    pub conntrack_min: Option<i64>,
    /// Forget idle established TCP connections after this long; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Connection tracking")]
    pub conntrack_tcp_timeout_established: Option<Duration>,
    /// Forget half-closed TCP connections after this long; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Connection tracking")]
    pub conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// Let TCP packets outside the window pass.
    #[arg(long, help_heading = "Connection tracking", value_parser = go_bool, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = BOOL)]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// Forget UDP flows without a reply after this long; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Connection tracking")]
    pub conntrack_udp_timeout: Option<Duration>,
    /// Forget UDP flows with replies after this long; 0 leaves the kernel's value.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Connection tracking")]
    pub conntrack_udp_timeout_stream: Option<Duration>,

    /// Serve /healthz and /livez here, by default on 0.0.0.0:10256; empty for not at all.
    #[arg(long, value_name = "IP:PORT", help_heading = "Health and metrics")]
    pub healthz_bind_address: Option<String>,
    /// Serve /metrics here, by default on 127.0.0.1:10249; empty for not at all.
    #[arg(long, value_name = "IP:PORT", help_heading = "Health and metrics")]
    pub metrics_bind_address: Option<String>,
    /// The port of /healthz alone, 0 for none; older than --healthz-bind-address.
    #[arg(long, value_name = "PORT", hide = true)]
    pub healthz_port: Option<u16>,
    /// The port of /metrics alone, 0 for none; older than --metrics-bind-address.
    #[arg(long, value_name = "PORT", hide = true)]
    pub metrics_port: Option<u16>,
    /// End when one of these addresses is in use, rather than trying again.
    #[arg(long, help_heading = "Health and metrics", value_parser = go_bool, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = BOOL)]
    pub bind_address_hard_fail: Option<bool>,
    /// Accepted for kube-proxy's sake; there are no profiling pages.
    #[arg(long, help_heading = "Health and metrics", value_parser = go_bool, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_name = BOOL)]
    pub profiling: Option<bool>,
    /// Accepted for kube-proxy's sake; no metric is hidden.
    #[arg(long, value_name = "VERSION", help_heading = "Health and metrics")]
    pub show_hidden_metrics_for_version: Option<String>,

    /// How much to log: 0 for what matters, 2 for changes, 4 and more for debugging.
    #[arg(long = "v", short = 'v', value_name = "LEVEL", help_heading = "Logging")]
    pub v: Option<i64>,
    /// Other levels for single modules, as pattern=N,other=N.
    #[arg(long, value_name = "PATTERN=N", value_delimiter = ',', action = ArgAction::Append,
          value_parser = value::module_level, help_heading = "Logging")]
    pub vmodule: Vec<(String, i64)>,
    /// How log lines look: text or json.
    #[arg(long, value_name = "FORMAT", help_heading = "Logging")]
    pub logging_format: Option<String>,
    /// Accepted for kube-proxy's sake; log lines are not held back.
    #[arg(long, value_name = "DURATION", value_parser = go_duration, help_heading = "Logging")]
    pub log_flush_frequency: Option<Duration>,
}

/// Turns underscores in the names of flags into dashes, as kube-proxy does: `--cluster_cidr` is `--cluster-cidr`.
/// Values and what follows `--` are left alone.
pub fn normalize_args(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut flags_over = false;
    args.into_iter()
        .map(|arg| {
            flags_over |= arg == "--";
            match arg.to_str() {
                Some(text) if !flags_over && text.starts_with("--") => {
                    let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
                    format!("{}{value}", name.replace('_', "-")).into()
                }
                _ => arg,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
