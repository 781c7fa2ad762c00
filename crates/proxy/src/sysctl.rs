//! Kernel settings for connection tracking, and the `oom_score_adj` of this process.
//!
//! [`Kernel::read`] lists, [`plan`] decides (pure), [`Kernel::apply`] writes and reports. No failure here stops the
//! agent: in a container /proc/sys is often read-only, and inside a network namespace only the host can set the size
//! of the table. A setting that could not be written is reported with the value that it keeps.
//!
//! The table is only made larger: the administrator of the host may have chosen more. Timeouts are set to the configured
//! value, whether that is longer or shorter, as kube-proxy does; 0 keeps the kernel's.

use crate::config::ConntrackSettings;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The largest table size that is derived from the number of cores: entries cost memory, about 300 bytes each.
const MOST_BY_CORES: u64 = 1024 * 1024;

/// A kernel setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// The maximum number of entries in the conntrack table.
    Max,
    /// The number of hash buckets of the table; a quarter of its entries keeps the hash chains short.
    HashSize,
    /// The timeout of idle established TCP connections, in seconds.
    TcpEstablished,
    /// The timeout of half-closed TCP connections, in seconds.
    TcpCloseWait,
    /// Whether TCP packets outside the window are accepted.
    TcpBeLiberal,
    /// The timeout of UDP flows without a reply, in seconds.
    Udp,
    /// The timeout of UDP flows with replies, in seconds.
    UdpStream,
}

impl Setting {
    /// All settings.
    pub const ALL: [Setting; 7] = [
        Setting::Max,
        Setting::HashSize,
        Setting::TcpEstablished,
        Setting::TcpCloseWait,
        Setting::TcpBeLiberal,
        Setting::Udp,
        Setting::UdpStream,
    ];

    fn path(self) -> &'static str {
        match self {
            Setting::Max => "proc/sys/net/netfilter/nf_conntrack_max",
            Setting::HashSize => "sys/module/nf_conntrack/parameters/hashsize",
            Setting::TcpEstablished => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
            Setting::TcpCloseWait => "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            Setting::TcpBeLiberal => "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
            Setting::Udp => "proc/sys/net/netfilter/nf_conntrack_udp_timeout",
            Setting::UdpStream => "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
        }
    }

    /// The flag that keeps the kernel's value of this setting.
    fn opt_out(self) -> &'static str {
        match self {
            Setting::Max | Setting::HashSize => "--conntrack-max-per-core=0",
            Setting::TcpEstablished => "--conntrack-tcp-timeout-established=0",
            Setting::TcpCloseWait => "--conntrack-tcp-timeout-close-wait=0",
            Setting::TcpBeLiberal => "--conntrack-tcp-be-liberal=false",
            Setting::Udp => "--conntrack-udp-timeout=0",
            Setting::UdpStream => "--conntrack-udp-timeout-stream=0",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path().rsplit('/').next().unwrap_or_default();
        f.write_str(if *self == Setting::HashSize { "nf_conntrack hashsize" } else { name })
    }
}

/// The current values of the kernel, without the settings that cannot be read.
pub type Current = BTreeMap<Setting, u64>;

/// A setting to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The setting.
    pub setting: Setting,
    /// Its current value, if it can be read.
    pub was: Option<u64>,
    /// Its new value.
    pub value: u64,
}

/// A setting that could not be written, and keeps its value.
#[derive(Debug, thiserror::Error)]
#[error("{} could not be set to {}{}: {source}; set it on the host, or keep the kernel's value with {}",
    write.setting, write.value, current(write.was), write.setting.opt_out())]
pub struct Refused {
    /// The write that failed.
    pub write: Write,
    /// The kernel's error.
    pub source: io::Error,
}

fn current(value: Option<u64>) -> String {
    value.map_or(String::new(), |value| format!(", it stays {value}"))
}

/// The result of applying a plan.
#[derive(Debug, Default)]
pub struct Report {
    /// The settings that were written.
    pub written: Vec<Write>,
    /// The settings that could not be written. That is logged, and is no error of the agent.
    pub refused: Vec<Refused>,
}

/// The settings to write; empty if the kernel has the wanted values.
pub fn plan(current: &Current, want: &ConntrackSettings, cores: usize) -> Vec<Write> {
    let seconds = |timeout: Option<Duration>| timeout.map(|timeout| timeout.as_secs()).filter(|s| *s > 0);
    let exactly = |timeout| seconds(timeout).map(Requirement::Exactly);
    let max = table_size(want, cores);
    let requirements = [
        (Setting::Max, max.map(Requirement::AtLeast)),
        (Setting::HashSize, max.map(|max| Requirement::AtLeast(max / 4))),
        (Setting::TcpEstablished, exactly(want.tcp_established)),
        (Setting::TcpCloseWait, exactly(want.tcp_close_wait)),
        (Setting::TcpBeLiberal, want.tcp_be_liberal.then_some(Requirement::Exactly(1))),
        (Setting::Udp, exactly(want.udp)),
        (Setting::UdpStream, exactly(want.udp_stream)),
    ];
    let unmet = requirements.into_iter().filter_map(|(setting, requirement)| {
        let was = current.get(&setting).copied();
        let value = requirement?.unmet(was)?;
        Some(Write { setting, was, value })
    });
    unmet.collect()
}

/// The values of a setting that are acceptable.
enum Requirement {
    Exactly(u64),
    AtLeast(u64),
}

impl Requirement {
    /// The value to write; `None` if the current value meets the requirement.
    fn unmet(self, was: Option<u64>) -> Option<u64> {
        match self {
            Requirement::Exactly(value) => (was != Some(value)).then_some(value),
            Requirement::AtLeast(value) => was.is_none_or(|was| was < value).then_some(value),
        }
    }
}

/// The table size for a number of cores; `None` keeps the kernel's.
fn table_size(want: &ConntrackSettings, cores: usize) -> Option<u64> {
    if want.max_per_core == 0 {
        return None;
    }
    let by_cores = u64::from(want.max_per_core).saturating_mul(cores as u64).min(MOST_BY_CORES);
    Some(by_cores.max(want.min.into())).filter(|size| *size > 0)
}

/// The files in /proc and /sys through which the kernel's settings are read and written.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
}

impl Kernel {
    /// The files of this host.
    pub fn host() -> Self {
        Kernel::under("/")
    }

    /// Files below another root, for tests.
    pub fn under(root: impl AsRef<Path>) -> Self {
        Kernel { root: root.as_ref().to_owned() }
    }

    /// Reads the current settings.
    pub fn read(&self) -> Current {
        let read = |setting: Setting| {
            let text = fs::read_to_string(self.root.join(setting.path())).ok()?;
            Some((setting, text.trim().parse().ok()?))
        };
        Setting::ALL.into_iter().filter_map(read).collect()
    }

    /// The number of cores of the host, not only those that this process may run on: the table is the host's too.
    pub fn cores(&self) -> usize {
        let online = fs::read_to_string(self.root.join("sys/devices/system/cpu/online")).ok();
        let fallback = || std::thread::available_parallelism().map_or(1, usize::from);
        online.as_deref().and_then(count_cpus).unwrap_or_else(fallback)
    }

    /// Writes the settings. A failed write does not keep the others from being made.
    pub fn apply(&self, plan: &[Write]) -> Report {
        let mut report = Report::default();
        for write in plan {
            match self.write(write.setting.path(), &write.value.to_string()) {
                Ok(()) => report.written.push(*write),
                Err(source) => report.refused.push(Refused { write: *write, source }),
            }
        }
        report
    }

    /// Sets this process's `oom_score_adj`; lowering it takes CAP_SYS_RESOURCE.
    pub fn set_oom_score_adj(&self, value: i16) -> io::Result<()> {
        self.write("proc/self/oom_score_adj", &value.to_string())
    }

    /// Writes a file, and never creates one: a setting that the kernel does not have is an error.
    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).truncate(true).open(self.root.join(path))?;
        io::Write::write_all(&mut file, value.as_bytes())
    }
}

/// The number of CPUs in a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    let mut count = 0usize;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests;
