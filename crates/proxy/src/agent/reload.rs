//! Detects changes of the configuration file.
//!
//! The file is polled, not watched: it usually is a mounted ConfigMap, where a symbolic link two levels up is
//! replaced, and one `stat` every two seconds costs next to nothing.

use crate::config::{Config, ConfigError, ProxyFlags, Warnings, read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(2);

/// A file that is missing for so many intervals is gone.
const MISSING: u32 = 2;

/// Device, inode, size and modification time. A file with other contents differs in one of them.
type Stamp = (u64, u64, u64, i64, i64);

/// The configuration file, and its state when it was last read.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    flags: ProxyFlags,
    seen: Option<Stamp>,
    /// The time of the next `stat`.
    next: Instant,
    /// How many times in a row it was missing.
    missing: u32,
}

impl ConfigFile {
    /// The file that the flags name, if they name one.
    pub(crate) fn new(flags: ProxyFlags) -> ConfigFile {
        let seen = flags.run.config.as_deref().and_then(stamp);
        ConfigFile { flags, seen, next: Instant::now() + INTERVAL, missing: 0 }
    }

    /// Waits for a change, and returns the new configuration or its errors. Mistakes that do not keep the file from
    /// being used are returned too.
    ///
    /// The future may be dropped and the method called again at any time: the time of the next `stat` is kept.
    pub(crate) async fn changed(&mut self) -> Result<(Config, Warnings), String> {
        let Some(path) = self.flags.run.config.clone() else { return std::future::pending().await };
        loop {
            tokio::time::sleep_until(self.next).await;
            self.next = Instant::now() + INTERVAL;
            let now = stamp(&path);
            if now.is_none() {
                self.missing += 1;
                // At first it may be about to be replaced.
                if self.missing == MISSING {
                    tracing::warn!(file = %path.display(), "the configuration file is gone; the last configuration stays in force");
                }
                continue;
            }
            if std::mem::take(&mut self.missing) >= MISSING {
                tracing::info!(file = %path.display(), "the configuration file is back");
            }
            if now != self.seen {
                self.seen = now;
                return self.read(&path);
            }
        }
    }

    /// Whether the file is gone.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing >= MISSING
    }

    fn read(&self, path: &Path) -> Result<(Config, Warnings), String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let all =
            |errors: Vec<ConfigError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        read(&self.flags, Some((&path.display().to_string(), &text))).map_err(all)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let m = std::fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec()))
}
