//! Other proxies that program the Services of this node: another agent, or kube-proxy.
//!
//! In: the list of processes in /proc. Out: the process that this agent stands back for, with its mode. Two proxies would
//! undo each other's changes for ever. The agent that came second stands back: another agent holds the name of
//! [`super::presence`], and kube-proxy does not know of Portway. Only processes of the same network namespace count.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of this process in `ps` and `ss`, also if it was started as `kube-proxy`.
const OWN_NAME: &std::ffi::CStr = c"portway";

/// So many repairs within [`WINDOW`] raise the suspicion that another proxy runs.
const REPAIRS: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// Another proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    name: String,
    /// Not known if the process is in another container.
    process: Option<u32>,
    mode: Option<String>,
}

impl Rival {
    /// Another agent whose process cannot be seen from this one's container.
    pub(crate) fn hidden_agent() -> Rival {
        Rival { name: "another portway agent".to_owned(), process: None, mode: None }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process.map(|process| format!("process {process}"));
        let mode = self.mode.as_ref().map(|mode| format!("mode {mode}"));
        let known: Vec<String> = [process, mode].into_iter().flatten().collect();
        f.write_str(&self.name)?;
        if known.is_empty() { Ok(()) } else { write!(f, " ({})", known.join(", ")) }
    }
}

/// Names this process `portway`, so that other agents tell it from kube-proxy.
pub(crate) fn set_own_name() {
    _ = rustix::thread::set_name(OWN_NAME);
}

/// Finds kube-proxy in this network namespace.
pub(crate) fn find_kube_proxy() -> Option<Rival> {
    find(Path::new("/proc"), |name, _| name == "kube-proxy")
}

/// Finds another agent in this network namespace.
pub(crate) fn find_agent() -> Option<Rival> {
    find(Path::new("/proc"), |name, arguments| {
        name == "portway" && !arguments.iter().any(|argument| argument == "relay")
    })
}

fn find(proc: &Path, is_rival: impl Fn(&str, &[String]) -> bool) -> Option<Rival> {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/net")).ok();
    let own = namespace(&proc.join("self"))?;
    let of_number = |entry: std::fs::DirEntry| -> Option<(u32, PathBuf)> {
        let process = entry.file_name().to_str()?.parse().ok()?;
        (process != std::process::id()).then(|| (process, entry.path()))
    };
    let processes = std::fs::read_dir(proc).ok()?.flatten().filter_map(of_number);
    for (process, path) in processes {
        let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default().trim_end().to_owned();
        let arguments = arguments(&path);
        // A process that has ended has no arguments.
        if !arguments.is_empty() && is_rival(&name, &arguments) && namespace(&path).as_ref() == Some(&own) {
            let mode = mode(&path, &arguments);
            return Some(Rival { name, process: Some(process), mode });
        }
    }
    None
}

fn arguments(process: &Path) -> Vec<String> {
    let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let arguments = line.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

/// The mode that a proxy was started with: its flag, or the field in its configuration file, in its own file system.
fn mode(process: &Path, arguments: &[String]) -> Option<String> {
    let flag = |name: &str| {
        let argument = |index: usize, argument: &String| match argument.strip_prefix(name)? {
            "" => arguments.get(index + 1).cloned(),
            rest => rest.strip_prefix('=').map(str::to_owned),
        };
        arguments.iter().enumerate().find_map(|(index, text)| argument(index, text))
    };
    let in_file = || {
        let path = flag("--config")?;
        let file = process.join("root").join(path.trim_start_matches('/'));
        let text = std::fs::read_to_string(file).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix("mode:"))?;
        Some(value.trim().trim_matches(['"', '\'']).to_owned())
    };
    flag("--proxy-mode").or_else(in_file).filter(|mode| !mode.is_empty())
}

/// The times of the last repairs of changed rules.
#[derive(Debug, Default)]
pub(crate) struct Repairs(VecDeque<Instant>);

impl Repairs {
    /// Records a repair.
    pub(crate) fn record(&mut self, now: Instant) {
        self.0.push_back(now);
        while self.0.len() > REPAIRS {
            self.0.pop_front();
        }
    }

    /// Whether repairs are so frequent that another proxy may run.
    pub(crate) fn are_frequent(&self, now: Instant) -> bool {
        let first = self.0.front().filter(|_| self.0.len() == REPAIRS);
        first.is_some_and(|first| now.saturating_duration_since(*first) < WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn the_mode_is_read_from_the_flag_or_the_file() {
        let process = std::env::temp_dir().join(format!("portway-rivals-{}", std::process::id()));
        std::fs::create_dir_all(process.join("root/etc")).expect("a directory");
        std::fs::write(process.join("root/etc/proxy.conf"), "kind: x\nmode: \"ipvs\"\n").expect("a file");
        std::fs::write(process.join("root/etc/default.conf"), "kind: x\nmode: \"\"\n").expect("a file");
        let read = |arguments: &[&str]| mode(&process, &strings(arguments));
        assert_eq!(read(&["kube-proxy", "--proxy-mode=iptables"]).as_deref(), Some("iptables"));
        assert_eq!(read(&["kube-proxy", "--proxy-mode", "nftables", "--v=2"]).as_deref(), Some("nftables"));
        assert_eq!(read(&["kube-proxy", "--config=/etc/proxy.conf"]).as_deref(), Some("ipvs"));
        assert_eq!(read(&["kube-proxy", "--config", "/etc/default.conf"]), None);
        assert_eq!(read(&["kube-proxy", "--config-sync-period=1s"]), None);
        std::fs::remove_dir_all(&process).expect("the directory");
    }

    #[test]
    fn a_process_is_found_by_name_in_the_same_network_namespace_only() {
        let proc = std::env::temp_dir().join(format!("portway-proc-{}", std::process::id()));
        let add = |process: &str, name: &str, line: &str, namespace: &str| {
            let path = proc.join(process);
            std::fs::create_dir_all(path.join("ns")).expect("a directory");
            std::fs::write(path.join("comm"), format!("{name}\n")).expect("a file");
            std::fs::write(path.join("cmdline"), line.replace(' ', "\0")).expect("a file");
            std::os::unix::fs::symlink(namespace, path.join("ns/net")).expect("a link");
        };
        add("self", "portway", "portway proxy", "net:[1]");
        add("7", "kube-proxy", "kube-proxy --proxy-mode=ipvs", "net:[2]");
        add("8", "kube-proxy", "", "net:[1]");
        let kube_proxy = || find(&proc, |name, _| name == "kube-proxy");
        assert_eq!(kube_proxy(), None, "in another namespace, and ended");
        add("9", "kube-proxy", "kube-proxy --proxy-mode=ipvs", "net:[1]");
        let found = kube_proxy().map(|rival| rival.to_string());
        assert_eq!(found.as_deref(), Some("kube-proxy (process 9, mode ipvs)"));
        std::fs::remove_dir_all(&proc).expect("the directory");
    }

    #[test]
    fn three_repairs_within_a_minute_are_frequent() {
        let (start, mut repairs) = (Instant::now(), Repairs::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        repairs.record(at(0));
        repairs.record(at(50));
        assert!(!repairs.are_frequent(at(50)));
        repairs.record(at(70));
        assert!(!repairs.are_frequent(at(70)));
        repairs.record(at(71));
        assert!(repairs.are_frequent(at(71)));
        assert!(!repairs.are_frequent(at(111)));
    }
}
