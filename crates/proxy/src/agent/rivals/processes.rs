//! Finds the processes of other proxies in /proc, and the modes that they were started with.

use super::{Rival, RivalKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name of this process in `ps` and `ss`, also if it was started as `kube-proxy`.
const OWN_NAME: &std::ffi::CStr = c"portway";

/// Names this process `portway`, so that other agents tell it from kube-proxy.
pub(crate) fn set_own_name() {
    _ = rustix::thread::set_name(OWN_NAME);
}

/// Finds kube-proxy in this network namespace: a process of root or of this user.
pub(crate) fn find_kube_proxy() -> Option<Rival> {
    find(Path::new("/proc"), "kube-proxy")
}

/// The agent in a process; none if the process is in another container.
pub(crate) fn agent(process: Option<u32>) -> Rival {
    let path = process.map(|process| PathBuf::from(format!("/proc/{process}")));
    let mode = path.as_ref().and_then(|path| mode(path, &arguments(path)));
    Rival { kind: RivalKind::Agent, process, mode }
}

fn find(proc: &Path, name: &str) -> Option<Rival> {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/net")).ok();
    let user = |process: &Path| std::fs::metadata(process).ok().map(|metadata| metadata.uid());
    let own = proc.join("self");
    let (own_namespace, own_user) = (namespace(&own)?, user(&own)?);
    for entry in std::fs::read_dir(proc).ok()?.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let path = entry.path();
        let has_name = std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        if !has_name || process == std::process::id() {
            continue;
        }
        let arguments = arguments(&path);
        // A process that has ended has no arguments.
        if !arguments.is_empty()
            && namespace(&path).as_ref() == Some(&own_namespace)
            && user(&path).is_some_and(|user| user == 0 || user == own_user)
        {
            let mode = mode(&path, &arguments);
            return Some(Rival { kind: RivalKind::KubeProxy, process: Some(process), mode });
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
        let kube_proxy = || find(&proc, "kube-proxy");
        assert_eq!(kube_proxy(), None, "in another namespace, and ended");
        add("9", "kube-proxy", "kube-proxy --proxy-mode=ipvs", "net:[1]");
        let found = kube_proxy().map(|rival| rival.to_string());
        assert_eq!(found.as_deref(), Some("kube-proxy (process 9, mode ipvs)"));
        std::fs::remove_dir_all(&proc).expect("the directory");
    }
}
