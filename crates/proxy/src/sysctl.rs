//! Kernel settings for connection tracking, and how dear this process is when memory runs out.
//!
//! [`Kernel::read`] lists, [`plan`] decides (pure), [`Kernel::apply`] writes and reports. Nothing here is worth
//! stopping for: in a container /proc/sys is often read-only, and inside a network namespace the size of the table is
//! the host's to set. What could not be written is a note with the value that stays.
//!
//! The table is only ever made larger, and timeouts that are kube-proxy's defaults are only ever made longer: the
//! administrator of the host may have had reasons for more. A timeout other than the default was asked for by
//! the administrator, and is set as it is, up or down.

use crate::config::ConntrackSettings;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More entries than this are not derived from the number of cores: they cost memory, about 300 bytes each.
const MOST_BY_CORES: u64 = 1024 * 1024;

/// A setting of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// Entries in the table.
    Max,
    /// Buckets of the table; a quarter of its entries keeps the chains short.
    HashSize,
    /// Idle established TCP connections, in seconds.
    TcpEstablished,
    /// Half-closed TCP connections, in seconds.
    TcpCloseWait,
    /// Whether TCP packets outside the window pass.
    TcpBeLiberal,
    /// UDP flows without a reply, in seconds.
    Udp,
    /// UDP flows with replies, in seconds.
    UdpStream,
}

impl Setting {
    /// Every one.
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

    /// The flag that leaves this setting to the kernel.
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

/// What the kernel has now; settings that cannot be read are not in it.
pub type Current = BTreeMap<Setting, u64>;

/// A setting to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which.
    pub setting: Setting,
    /// Its value now, if it can be read.
    pub was: Option<u64>,
    /// Its value to be.
    pub value: u64,
}

/// A setting that could not be written, and stays as it is.
#[derive(Debug, thiserror::Error)]
#[error("{} stays {}, {} was wanted: {source} (set it on the host, or leave it alone with {})",
    write.setting, shown(write.was), write.value, write.setting.opt_out())]
pub struct Refused {
    /// What was to be written.
    pub write: Write,
    /// What the kernel says.
    pub source: io::Error,
}

fn shown(value: Option<u64>) -> String {
    value.map_or("as it is".to_owned(), |value| value.to_string())
}

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Report {
    /// Written.
    pub written: Vec<Write>,
    /// Not written; worth a line in the log, and no more.
    pub refused: Vec<Refused>,
}

/// Says what to write. Empty if the kernel has what is wanted.
pub fn plan(current: &Current, want: &ConntrackSettings, cores: usize) -> Vec<Write> {
    let seconds = |timeout: Option<Duration>| timeout.map(|timeout| timeout.as_secs()).filter(|s| *s > 0);
    let exact_unless = |value: Option<Duration>, default: Duration| {
        let seconds = seconds(value)?;
        Some(if value == Some(default) { Wish::AtLeast(seconds) } else { Wish::Exactly(seconds) })
    };
    let max = table_size(want, cores);
    let wishes = [
        (Setting::Max, max.map(Wish::AtLeast)),
        (Setting::HashSize, max.map(|max| Wish::AtLeast(max / 4))),
        (
            Setting::TcpEstablished,
            exact_unless(want.tcp_established, ConntrackSettings::DEFAULT_TCP_ESTABLISHED),
        ),
        (Setting::TcpCloseWait, exact_unless(want.tcp_close_wait, ConntrackSettings::DEFAULT_TCP_CLOSE_WAIT)),
        (Setting::TcpBeLiberal, want.tcp_be_liberal.then_some(Wish::Exactly(1))),
        (Setting::Udp, seconds(want.udp).map(Wish::Exactly)),
        (Setting::UdpStream, seconds(want.udp_stream).map(Wish::Exactly)),
    ];
    let unmet = wishes.into_iter().filter_map(|(setting, wish)| {
        let was = current.get(&setting).copied();
        let value = wish?.unmet(was)?;
        Some(Write { setting, was, value })
    });
    unmet.collect()
}

enum Wish {
    Exactly(u64),
    AtLeast(u64),
}

impl Wish {
    /// The value to write, unless what is there will do.
    fn unmet(self, was: Option<u64>) -> Option<u64> {
        match self {
            Wish::Exactly(value) => (was != Some(value)).then_some(value),
            Wish::AtLeast(value) => was.is_none_or(|was| was < value).then_some(value),
        }
    }
}

/// Entries for so many cores, or `None` to leave the table alone.
fn table_size(want: &ConntrackSettings, cores: usize) -> Option<u64> {
    if want.max_per_core == 0 {
        return None;
    }
    let by_cores = u64::from(want.max_per_core).saturating_mul(cores as u64).min(MOST_BY_CORES);
    Some(by_cores.max(want.min.into())).filter(|size| *size > 0)
}

/// The files through which the kernel is read and set.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
}

impl Kernel {
    /// This host's.
    pub fn host() -> Self {
        Kernel::under("/")
    }

    /// Files below another root, for tests and for hosts mounted elsewhere.
    pub fn under(root: impl AsRef<Path>) -> Self {
        Kernel { root: root.as_ref().to_owned() }
    }

    /// The settings as they are.
    pub fn read(&self) -> Current {
        let read = |setting: Setting| {
            let text = fs::read_to_string(self.root.join(setting.path())).ok()?;
            Some((setting, text.trim().parse().ok()?))
        };
        Setting::ALL.into_iter().filter_map(read).collect()
    }

    /// The cores of the host, not only those this process may run on: the table is the host's too.
    pub fn cores(&self) -> usize {
        let online = fs::read_to_string(self.root.join("sys/devices/system/cpu/online")).ok();
        let fallback = || std::thread::available_parallelism().map_or(1, usize::from);
        online.as_deref().and_then(count_cpus).unwrap_or_else(fallback)
    }

    /// Writes, and goes on past what cannot be written.
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

    /// Never creates a file: /proc does not have what the kernel does not know.
    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).truncate(true).open(self.root.join(path))?;
        io::Write::write_all(&mut file, value.as_bytes())
    }
}

/// How many CPUs a list such as `0-3,8` names.
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
