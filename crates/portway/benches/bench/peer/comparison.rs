//! The figures of both proxies, side by side: a table and JSON.

use super::Contender;
use super::binary::Peer;
use super::source::Origin;
use crate::Options;
use crate::sync::median;
use portway_model::api::time::format_rfc3339;
use serde_json::{Value, json};
use std::fmt;
use std::process::Command;
use std::time::SystemTime;

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    FirstPacket,
    StartCpu,
    Change,
    ChurnCpu,
    Memory,
    PeakMemory,
    Rate,
    Connect,
    FlushFailed,
    FlushRepaired,
    Failed,
    Repaired,
}

impl Metric {
    /// The name in JSON.
    fn key(self) -> &'static str {
        match self {
            Metric::FirstPacket => "first_packet",
            Metric::StartCpu => "start_cpu",
            Metric::Change => "change_to_packet",
            Metric::ChurnCpu => "churn_cpu",
            Metric::Memory => "memory",
            Metric::PeakMemory => "peak_memory",
            Metric::Rate => "connections",
            Metric::Connect => "connect",
            Metric::FlushFailed => "flush_failed",
            Metric::FlushRepaired => "flush_repaired",
            Metric::Failed => "failed",
            Metric::Repaired => "repaired",
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Metric::FirstPacket => "from exec to the first packet",
            Metric::StartCpu => "CPU time until the rules are complete",
            Metric::Change => "from a change to the first packet to the new endpoint",
            Metric::ChurnCpu => "CPU while endpoints change",
            Metric::Memory => "resident memory",
            Metric::PeakMemory => "resident memory at its peak",
            Metric::Rate => "connections per second",
            Metric::Connect => "to connect",
            Metric::FlushFailed => "rules removed by another process: failed connections",
            Metric::FlushRepaired => "rules removed by another process: repaired after",
            Metric::Failed => "failed connections",
            Metric::Repaired => "the last of them after",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Metric::FirstPacket | Metric::StartCpu | Metric::FlushRepaired | Metric::Repaired => "s",
            Metric::Change => "ms",
            Metric::ChurnCpu => "core",
            Metric::Memory | Metric::PeakMemory => "MB",
            Metric::Rate => "/s",
            Metric::Connect => "µs",
            Metric::FlushFailed | Metric::Failed => "",
        }
    }

    /// A value with its unit; an infinite one did not end within the window.
    fn show(self, value: f64, window: u64) -> String {
        if value.is_infinite() {
            return format!("not in {window} s");
        }
        let digits = match value.abs() {
            _ if self.unit().is_empty() => 0,
            size if size >= 100.0 => 0,
            size if size >= 10.0 => 1,
            size if size >= 1.0 => 2,
            _ => 3,
        };
        format!("{value:.digits$} {}", self.unit()).trim_end().to_owned()
    }
}

/// The values of one quantity, of each turn, in a mode or a switch.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) group: String,
    pub(super) metric: Metric,
    portway: Vec<f64>,
    kube_proxy: Vec<f64>,
}

impl Row {
    fn medians(&self) -> [f64; 2] {
        [median(self.portway.clone()), median(self.kube_proxy.clone())]
    }

    /// Portway's median against kube-proxy's, if both are finite and kube-proxy's is not zero.
    pub(super) fn ratio(&self) -> Option<f64> {
        let [portway, kube_proxy] = self.medians();
        Some(portway / kube_proxy).filter(|ratio| ratio.is_finite() && kube_proxy.is_finite())
    }
}

/// What was compared, and where.
#[derive(Debug)]
pub(super) struct Conditions {
    date: String,
    portway: &'static str,
    kube_proxy: String,
    /// Kernel, tools and processors.
    machine: String,
    /// Size of the cluster, and the API server.
    cluster: String,
    turns: usize,
    /// How long connections are counted after a disturbance, in seconds.
    window: u64,
}

impl Conditions {
    pub(super) fn of_this_machine(options: &Options, peer: &Peer, origin: &Origin) -> Conditions {
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let load = read("/proc/loadavg");
        let load = load.split(' ').next().unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease");
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (nft, iptables) = (tool_version("nft"), tool_version("iptables"));
        Conditions {
            date: format_rfc3339(i64::try_from(seconds).unwrap_or_default()),
            portway: env!("CARGO_PKG_VERSION"),
            kube_proxy: peer.version.clone(),
            machine: format!(
                "Linux {kernel}, {nft}, {iptables}, {cores} cores, load average {load} at the start"
            ),
            cluster: format!(
                "{} Services of {} endpoints, {}; {} changes a second for {} s",
                options.peer_services,
                options.endpoints,
                origin.description(),
                options.churn_rate,
                options.churn_seconds
            ),
            turns: options.turns,
            window: options.window_seconds,
        }
    }

    /// The two versions and the day.
    pub(super) fn title(&self) -> String {
        let day = self.date.split('T').next().unwrap_or_default();
        format!("Portway {} and kube-proxy {}, {day}", self.portway, self.kube_proxy)
    }
}

/// Such as `nft 1.0.6`.
fn tool_version(tool: &str) -> String {
    let output = Command::new(tool).arg("--version").output().map(|o| o.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&output);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('v'));
    version.map_or_else(|| format!("no {tool}"), |version| format!("{tool} {version}"))
}

/// All figures of a run.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) conditions: Conditions,
    pub(super) rows: Vec<Row>,
    notes: Vec<String>,
}

impl Comparison {
    pub(super) fn new(conditions: Conditions, notes: Vec<String>) -> Comparison {
        Comparison { conditions, rows: Vec::new(), notes }
    }

    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Notes that connections failed under load before a disturbance, if any did.
    pub(super) fn note_early(&mut self, group: &str, contender: Contender, failed: usize) {
        if failed > 0 {
            let name = contender.name();
            self.note(format!(
                "{group}, {name}: {failed} connections failed before the disturbance: the machine was too busy"
            ));
        }
    }

    /// Adds the figure of one turn.
    pub(super) fn add(&mut self, group: &str, contender: Contender, metric: Metric, value: f64) {
        let is_it = |row: &Row| row.group == group && row.metric == metric;
        let at = self.rows.iter().position(is_it).unwrap_or_else(|| {
            let group = group.to_owned();
            self.rows.push(Row { group, metric, portway: Vec::new(), kube_proxy: Vec::new() });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        match contender {
            Contender::Portway => row.portway.push(value),
            Contender::KubeProxy => row.kube_proxy.push(value),
        }
    }

    /// The groups in the order of their first figures.
    pub(super) fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = self.rows.iter().map(|row| row.group.as_str()).collect();
        groups.dedup();
        groups
    }

    pub(super) fn json(&self) -> Value {
        // JSON has no infinity: null means that it did not happen within the window.
        let rows = self.rows.iter().map(|row| {
            let [portway, kube_proxy] = row.medians();
            json!({
                "group": row.group, "key": row.metric.key(), "what": row.metric.label(), "unit": row.metric.unit(),
                "portway": portway, "kube_proxy": kube_proxy, "ratio": row.ratio(),
                "turns": {"portway": row.portway, "kube_proxy": row.kube_proxy},
            })
        });
        let conditions = &self.conditions;
        json!({
            "date": conditions.date, "portway": conditions.portway, "kube_proxy": conditions.kube_proxy,
            "machine": conditions.machine, "cluster": conditions.cluster, "turns": conditions.turns,
            "window_seconds": conditions.window, "rows": rows.collect::<Vec<_>>(), "notes": self.notes,
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions = &self.conditions;
        writeln!(f, "{}\n{}\n{}", conditions.title(), conditions.machine, conditions.cluster)?;
        let turns = match conditions.turns {
            1 => "one turn each".to_owned(),
            turns => format!("medians of {turns} turns each"),
        };
        writeln!(f, "{turns}; ratio: Portway / kube-proxy")?;
        let width = self.rows.iter().map(|row| row.metric.label().chars().count()).max().unwrap_or(0) + 2;
        for group in self.groups() {
            writeln!(f, "\n{group:width$}  {:>12}  {:>12}  {:>8}", "Portway", "kube-proxy", "ratio")?;
            for row in self.rows.iter().filter(|row| row.group == group) {
                let [portway, kube_proxy] =
                    row.medians().map(|value| row.metric.show(value, conditions.window));
                let ratio = row.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2} ×"));
                let label = format!("  {}", row.metric.label());
                writeln!(f, "{label:width$}  {portway:>12}  {kube_proxy:>12}  {ratio:>8}")?;
            }
        }
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}
