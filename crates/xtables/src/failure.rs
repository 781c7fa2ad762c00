//! Failures of the tool, recognised by its exit status and its messages.

use portway_dataplane::Error;
use portway_model::Family;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// A failure of the tool.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The program is not installed.
    #[error("{program} is not installed: install the package iptables")]
    Missing {
        /// The program.
        program: String,
    },
    /// Another program holds the lock on the rules.
    #[error("another program holds the lock on the rules{}: {message}", holder.as_ref().map(|h| format!(", {h}")).unwrap_or_default())]
    Locked {
        /// That program, if `/proc/locks` has it.
        holder: Option<String>,
        /// The message of the tool.
        message: String,
    },
    /// The tool refused the script.
    #[error("{program} refused{}: {message}", line.map(|l| format!(" line {l}")).unwrap_or_default())]
    Refused {
        /// The program.
        program: String,
        /// The line, if the message names one.
        line: Option<usize>,
        /// Its message.
        message: String,
    },
    /// The tool was killed.
    #[error("{program} ended early ({status}): {message}")]
    Died {
        /// The program.
        program: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its message.
        message: String,
    },
    /// The tool could not be started, or a pipe to it failed.
    #[error("{program}: {source}")]
    Io {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Failure {
    /// Converts to the error of a mode.
    pub fn in_family(self, family: Family) -> Error {
        if self.is_permission() {
            return Error::Permission { operation: "change iptables rules".to_owned(), source: self.into() };
        }
        if let Failure::Missing { program } = &self {
            return Error::Unsupported {
                feature: program.clone(),
                hint: "the iptables mode runs this program: install the package iptables, or use --proxy-mode=nftables".to_owned(),
            };
        }
        Error::kernel(family, self)
    }

    /// Whether the tool lacks privilege.
    pub fn is_permission(&self) -> bool {
        match self {
            Failure::Refused { message, .. } | Failure::Died { message, .. } => {
                message.contains("Permission denied") || message.contains("you must be root")
            }
            Failure::Io { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

/// The tool's exit status if another process holds the lock, or a resource is short (`RESOURCE_PROBLEM`).
const BUSY: i32 = 4;

/// The failure for an exit status and the text on standard error.
pub(crate) fn diagnose(program: String, status: ExitStatus, message: String) -> Failure {
    if status.code() == Some(BUSY) && message.contains("xtables lock") {
        return Failure::Locked { holder: lock_holder(), message: first_line(&message) };
    }
    match status.code() {
        Some(_) => Failure::Refused { program, line: line_number(&message), message: on_one_line(&message) },
        None => Failure::Died { program, status, message: on_one_line(&message) },
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// The message of the tool on one line, without its hint about `--help`.
fn on_one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("Try `"));
    lines.collect::<Vec<_>>().join("; ")
}

/// The line that the tool refused: it prints `line 4 failed`, `line 4: …` or `at line: 4`.
fn line_number(message: &str) -> Option<usize> {
    message.match_indices("line").find_map(|(at, word)| {
        let rest = message[at + word.len()..].trim_start_matches([':', ' ']);
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    })
}

/// The program that holds the lock, read from the kernel's list of locks.
fn lock_holder() -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let lock = std::env::var_os("XTABLES_LOCKFILE")
        .map_or_else(|| PathBuf::from("/run/xtables.lock"), PathBuf::from);
    let inode = std::fs::metadata(lock).ok()?.ino();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let holder = locks.lines().find(|l| !l.contains("->") && l.contains(&format!(":{inode} ")))?;
    let process: u32 = holder.split_whitespace().nth(4)?.parse().ok()?;
    let command = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Some(format!("process {process} ({})", command.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_number_is_read_from_the_messages_of_both_variants() {
        let table = [
            ("iptables-restore: line 4 failed", Some(4)),
            (
                "iptables-nft-restore: line 12 failed: Bad rule (does a matching rule exist in that chain?).",
                Some(12),
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 94008: RULE_APPEND failed (x): rule in chain OUTPUT",
                Some(94008),
            ),
            (
                "iptables-restore v1.8.9 (legacy): unknown option \"--foo\"\nError occurred at line: 3\nTry `x'",
                Some(3),
            ),
            ("iptables-restore: COMMIT expected at line 4", Some(4)),
            ("something else", None),
        ];
        for (message, line) in table {
            assert_eq!(line_number(message), line, "{message}");
        }
    }
}
