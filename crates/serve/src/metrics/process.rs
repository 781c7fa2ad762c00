//! The process metrics of Prometheus' client libraries, read from /proc on each scrape.
//!
//! A value that cannot be read is omitted.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::fs;

/// Reads /proc/self on each scrape.
#[derive(Debug)]
pub struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) {
            let cpu = ConstCounter::new(stat.cpu_ticks as f64 / ticks);
            put(&mut encoder, "process_cpu_seconds", "CPU time in user and system mode", &cpu)?;
            let page = rustix::param::page_size() as f64;
            let resident = stat.resident_pages as f64 * page;
            gauge(&mut encoder, "process_resident_memory_bytes", "Memory in RAM", resident)?;
            gauge(
                &mut encoder,
                "process_virtual_memory_bytes",
                "Address space in use",
                stat.virtual_bytes as f64,
            )?;
            if let Some(boot) = fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot_time) {
                let start = boot as f64 + stat.start_ticks as f64 / ticks;
                gauge(
                    &mut encoder,
                    "process_start_time_seconds",
                    "When the process started, since 1970",
                    start,
                )?;
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is the descriptor of the directory itself.
            let open = open.count().saturating_sub(1) as f64;
            gauge(&mut encoder, "process_open_fds", "Open file descriptors", open)?;
        }
        if let Some(max) = fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(max_files) {
            gauge(&mut encoder, "process_max_fds", "File descriptors that may be open", max)?;
        }
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    put(encoder, name, help, &ConstGauge::new(value))
}

fn put(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    let help = format!("{help}.");
    metric.encode(encoder.encode_descriptor(name, &help, None, metric.metric_type())?)
}

/// The fields of /proc/self/stat that are used (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name of the command may contain spaces and parentheses; the third field follows its last parenthesis.
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: number(14)?.checked_add(number(15)?)?,
            start_ticks: number(22)?,
            virtual_bytes: number(23)?,
            resident_pages: number(24)?,
        })
    }
}

/// The boot time, `btime` in /proc/stat.
fn boot_time(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The soft limit on open files in /proc/self/limits.
fn max_files(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 500 1000000 250 184467";
        let stat = Stat { cpu_ticks: 42, start_ticks: 500, virtual_bytes: 1_000_000, resident_pages: 250 };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn limits_and_boot_time_are_found() {
        let limits =
            "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024    524288   files\n";
        assert_eq!(max_files(limits), Some(1024.0));
        assert_eq!(max_files("Max open files unlimited unlimited files"), Some(f64::INFINITY));
        assert_eq!(max_files(""), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 3\n"), Some(1_700_000_000));
    }
}
