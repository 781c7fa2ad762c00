//! The kube-proxy binary: its version, and the modes that it has.

use crate::cluster::Mode;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kube-proxy binary that can be run.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) path: PathBuf,
    /// As in `v1.36.4`.
    pub(super) version: String,
    /// The help text of `--proxy-mode`.
    modes: String,
}

impl Peer {
    /// Checks that a file is a kube-proxy.
    pub(super) fn open(path: &Path) -> Result<Peer, String> {
        let shown = path.display();
        let path = path.canonicalize().map_err(|e| {
            let hint = if path.is_relative() {
                "; a relative path starts at the root of the repository"
            } else {
                ""
            };
            format!("--peer {shown}: {e}{hint}")
        })?;
        let output = |flag: &str| -> Result<String, String> {
            let output = Command::new(&path).arg(flag).output();
            let output = output.map_err(|e| format!("--peer {shown}: cannot be run: {e}"))?;
            Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        };
        let no_proxy = |found: &str| {
            let line = found.lines().next().unwrap_or_default();
            format!("--peer {shown}: is not a kube-proxy: its answer begins with {line:?}")
        };
        let version = output("--version")?;
        let version = version.trim().strip_prefix("Kubernetes ").ok_or_else(|| no_proxy(&version))?;
        // Other binaries of Kubernetes answer --version in the same way.
        let help = output("--help")?;
        let modes = proxy_mode_help(&help).ok_or_else(|| no_proxy(&help))?;
        Ok(Peer { version: version.to_owned(), modes, path })
    }

    /// Whether it has a mode, by its help text.
    pub(super) fn has(&self, mode: Mode) -> bool {
        self.modes.contains(&format!("'{}'", mode.flag()))
    }
}

/// The description of `--proxy-mode`, which quotes the name of each mode.
fn proxy_mode_help(help: &str) -> Option<String> {
    let begin = help.find("--proxy-mode")?;
    let text = &help[begin + 2..];
    Some(text[..text.find(" --").unwrap_or(text.len())].to_owned())
}
