//! The flags of `portway controller`, with kube-controller-manager's names where it has them.

use crate::kind::Kind;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Nodes that the node lifecycle controller works on at a time; a single one may have hundreds of Pods.
const NODES: usize = 5;

/// The flags of `portway controller`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Kubeconfig file of the API server; without one, the Pod's service account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, in place of the one in the kubeconfig
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Requests to the API server per second on average; zero or less for no limit
    #[arg(long, value_name = "N", default_value_t = 500.0, allow_negative_numbers = true)]
    pub kube_api_qps: f32,
    /// Requests to the API server at once, above the rate
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub kube_api_burst: i32,
    /// Controllers to run: `*` for those that run by default, `name` for one more, `-name` for one less
    ///
    /// By default: endpointslice-controller, endpoints-controller, endpointslice-mirroring-controller. On request, for
    /// clusters without kube-controller-manager: replicaset-controller, deployment-controller,
    /// node-lifecycle-controller, garbage-collector-controller.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<Choice>,
    /// Services whose EndpointSlices are written at the same time
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub concurrent_service_endpoint_syncs: usize,
    /// Services whose Endpoints objects are written at the same time
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub concurrent_endpoint_syncs: usize,
    /// Endpoints objects that are mirrored at the same time
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub mirroring_concurrent_service_endpoint_syncs: usize,
    /// ReplicaSets whose Pods are written at the same time
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub concurrent_replicaset_syncs: usize,
    /// Deployments whose ReplicaSets are written at the same time
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub concurrent_deployment_syncs: usize,
    /// Objects that the garbage collection works on at the same time
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub concurrent_gc_syncs: usize,
    /// How long a Node may be silent before it is marked as not ready
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = duration)]
    pub node_monitor_grace_period: Duration,
    /// How often every object is compared again, even if nothing has changed
    #[arg(long, value_name = "DURATION", default_value = "12h", value_parser = duration)]
    pub min_resync_period: Duration,
    /// Endpoints in an EndpointSlice at most, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = endpoints)]
    pub max_endpoints_per_slice: usize,
    /// Addresses of a subset that are mirrored at most, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = endpoints)]
    pub mirroring_max_endpoints_per_subset: usize,
    /// How long changes of Pods are collected before EndpointSlices are written
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub endpointslice_updates_batch_period: Duration,
    /// How long changes of Pods are collected before Endpoints objects are written
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub endpoint_updates_batch_period: Duration,
    /// How long changes of Endpoints objects are collected before they are mirrored
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub mirroring_endpointslice_updates_batch_period: Duration,
    /// Take part in a leader election, so that of several processes one writes
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    /// Name of the Lease; kube-controller-manager has the same name by default, so that one of the two writes
    #[arg(long, value_name = "NAME", default_value = "kube-controller-manager")]
    pub leader_elect_resource_name: String,
    /// Namespace of the Lease
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
    /// How long others wait after the leader's last renewal before one of them leads
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader tries to renew the Lease before it stops writing; less than the lease duration
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub leader_elect_renew_deadline: Duration,
    /// Time between attempts to acquire or renew the Lease
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    pub leader_elect_retry_period: Duration,
    /// Address of /healthz and /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10264")]
    pub bind_address: SocketAddr,
    /// Serve CPU profiles on /debug/pprof/profile
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub profiling: bool,
    /// How much to log: 0 changes of state, 2 each write and its reason, 4 conflicts, 6 requests and events
    #[arg(long = "v", value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: u32,
    /// Format of log lines: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub logging_format: String,
}

/// An item of `--controllers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All controllers that run by default.
    All,
    /// This one.
    With(Kind),
    /// Not this one.
    Without(Kind),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        if text == "*" {
            return Ok(Choice::All);
        }
        let name = text.strip_prefix('-').unwrap_or(text);
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name || kind.old_name() == name);
        let kind = kind.ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            format!("there is no controller {name:?}; there are {}", names.join(", "))
        })?;
        Ok(if text.starts_with('-') { Choice::Without(kind) } else { Choice::With(kind) })
    }
}

impl Options {
    /// Whether a controller runs. A name has precedence over `*`.
    pub fn is_enabled(&self, kind: Kind) -> bool {
        let named = self.controllers.iter().find_map(|choice| match choice {
            Choice::With(with) if *with == kind => Some(true),
            Choice::Without(without) if *without == kind => Some(false),
            _ => None,
        });
        named.unwrap_or(kind.is_of_endpoints() && self.controllers.contains(&Choice::All))
    }

    /// The mistakes that single flags do not show.
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        if !Kind::ALL.into_iter().any(|kind| self.is_enabled(kind)) {
            mistakes.push("--controllers: no controller is left to run".to_owned());
        }
        for kind in Kind::ALL {
            if self.concurrency(kind) == 0 {
                mistakes.push(format!("{}: at least one object has to be worked on at a time", kind.name()));
            }
        }
        if self.leader_elect_renew_deadline >= self.leader_elect_lease_duration {
            mistakes.push(
                "--leader-elect-renew-deadline must be less than --leader-elect-lease-duration".to_owned(),
            );
        }
        if self.leader_elect_retry_period >= self.leader_elect_renew_deadline {
            mistakes.push(
                "--leader-elect-retry-period must be less than --leader-elect-renew-deadline".to_owned(),
            );
        }
        for (flag, duration) in [
            ("--node-monitor-grace-period", self.node_monitor_grace_period),
            ("--min-resync-period", self.min_resync_period),
        ] {
            if duration < Duration::from_secs(1) {
                mistakes.push(format!("{flag} must be a second or more"));
            }
        }
        mistakes
    }

    /// The controllers that run.
    pub(crate) fn enabled(&self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(|kind| self.is_enabled(*kind))
    }

    pub(crate) fn concurrency(&self, kind: Kind) -> usize {
        match kind {
            Kind::Slices => self.concurrent_service_endpoint_syncs,
            Kind::Endpoints => self.concurrent_endpoint_syncs,
            Kind::Mirroring => self.mirroring_concurrent_service_endpoint_syncs,
            Kind::ReplicaSets => self.concurrent_replicaset_syncs,
            Kind::Deployments => self.concurrent_deployment_syncs,
            Kind::NodeLifecycle => NODES,
            Kind::Garbage => self.concurrent_gc_syncs,
        }
    }

    pub(crate) fn batch_period(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Slices => self.endpointslice_updates_batch_period,
            Kind::Endpoints => self.endpoint_updates_batch_period,
            Kind::Mirroring => self.mirroring_endpointslice_updates_batch_period,
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn max_endpoints(&self, kind: Kind) -> usize {
        match kind {
            Kind::Mirroring => self.mirroring_max_endpoints_per_subset,
            _ => self.max_endpoints_per_slice,
        }
    }
}

fn endpoints(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=1000) => Ok(n),
        _ => Err("want a number between 1 and 1000".to_owned()),
    }
}

/// A duration as Go writes it, in hours, minutes, seconds and milliseconds: `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration such as 500ms or 1m30s");
    let (mut rest, mut sum) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..unit_end] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        sum += Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())?;
        rest = &rest[unit_end..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn parse(flags: &[&str]) -> Result<Options, String> {
        let arguments = std::iter::once("controller").chain(flags.iter().copied());
        Command::try_parse_from(arguments).map(|command| command.options).map_err(|e| e.to_string())
    }

    #[test]
    fn controllers_are_chosen_by_name() {
        use Kind::{Endpoints, Mirroring, Slices};
        for (list, expected) in [
            ("*", &[Slices, Endpoints, Mirroring][..]),
            ("*,-endpoints-controller", &[Slices, Mirroring]),
            ("*,-endpoint,-endpointslicemirroring", &[Slices]),
            ("endpointslice-controller", &[Slices]),
            ("-endpoints-controller", &[]),
            ("*,garbagecollector,-endpoint", &[Slices, Mirroring, Kind::Garbage]),
            ("deployment-controller,replicaset", &[Kind::ReplicaSets, Kind::Deployments]),
            ("nodelifecycle", &[Kind::NodeLifecycle]),
        ] {
            let options = parse(&[&format!("--controllers={list}")]).expect(list);
            let enabled: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| options.is_enabled(*kind)).collect();
            assert_eq!(enabled, expected, "{list}");
        }
        let error = parse(&["--controllers=*,-endpointslices"]).expect_err("an unknown name");
        assert!(error.contains("endpointslice-controller, endpoints-controller"), "{error}");
    }

    #[test]
    fn mistakes_are_reported_together() {
        let options = parse(&[
            "--controllers=-endpoint",
            "--leader-elect-renew-deadline=20s",
            "--leader-elect-retry-period=1m30s",
            "--concurrent-endpoint-syncs=0",
        ]);
        assert_eq!(options.expect("flags").mistakes().len(), 4);
        assert_eq!(parse(&[]).expect("defaults").mistakes(), [""; 0]);
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, millis) in
            [("0s", 0), ("500ms", 500), ("1.5s", 1500), ("1m30s", 90_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "5 s", "-1s", "1d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
