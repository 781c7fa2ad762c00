//! Running the tool: its output is read while its input is written, because either may exceed a pipe, and a thread limits
//! its time.

use crate::failure::{Failure, diagnose};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A tool that takes longer than this is logged.
const LONG: Duration = Duration::from_secs(10);
/// After this many times that, the tool is killed; uncommitted tables do not change.
const TOO_LONG: u32 = 60;
/// Bytes of its messages that are kept.
const WORDS: usize = 1 << 16;

/// The tool at work.
#[derive(Debug)]
pub(crate) struct Run {
    program: PathBuf,
    child: Child,
    said: JoinHandle<Vec<u8>>,
    done: Sender<()>,
    minder: JoinHandle<()>,
}

impl Run {
    /// Starts it.
    pub(crate) fn start(
        program: &Path,
        arguments: &[&str],
        input: Stdio,
        output: Stdio,
    ) -> Result<Run, Failure> {
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C").stdin(input).stdout(output).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Failure::Missing { program: name(program) },
            _ => Failure::Io { program: name(program), source },
        })?;
        let errors = child.stderr.take();
        let said = std::thread::spawn(move || errors.map(listen).unwrap_or_default());
        let (done, ended) = channel();
        let (process, called) = (child.id(), name(program));
        let minder = std::thread::spawn(move || {
            for spell in 1..=TOO_LONG {
                match ended.recv_timeout(LONG) {
                    Err(RecvTimeoutError::Timeout) => {
                        let seconds = (LONG * spell).as_secs();
                        tracing::info!(program = called, seconds, "the tool is still running");
                    }
                    _ => return,
                }
            }
            tracing::error!(program = called, "the tool hangs, and is killed");
            if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
                // It was not waited for yet, so the number is still its own.
                kill_process(pid, Signal::KILL).ok();
            }
        });
        Ok(Run { program: program.to_owned(), child, said, done, minder })
    }

    /// What it reads.
    pub(crate) fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// What it prints.
    pub(crate) fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end, and says what went wrong.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Run { program, mut child, said, done, minder } = self;
        // What it says ends with it.
        let words = said.join().unwrap_or_default();
        drop(done);
        minder.join().ok();
        let status = child.wait().map_err(|source| Failure::Io { program: name(&program), source })?;
        let message = String::from_utf8_lossy(&words).trim().to_owned();
        if status.success() {
            if !message.is_empty() {
                tracing::debug!(program = name(&program), "{message}");
            }
            return Ok(());
        }
        Err(diagnose(name(&program), status, message))
    }
}

/// Reads to the end, and keeps the beginning.
fn listen(mut errors: ChildStderr) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = errors.read(&mut buffer) {
        let room = WORDS.saturating_sub(kept.len()).min(n);
        kept.extend_from_slice(&buffer[..room]);
    }
    kept
}

/// A program's name without its directory.
pub(crate) fn name(program: &Path) -> String {
    program.file_name().map_or_else(|| program.display().to_string(), |n| n.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// More than a pipe holds goes both ways at once, and neither side waits for the other.
    #[test]
    fn a_tool_that_says_much_is_heard_to_the_end() {
        let script = "head -c 300000 /dev/zero | tr '\\0' e >&2; cat >/dev/null; exit 1";
        let mut run =
            Run::start(Path::new("/bin/sh"), &["-c", script], Stdio::piped(), Stdio::null()).unwrap();
        let mut input = run.input().unwrap();
        input.write_all(&vec![b'x'; 300_000]).unwrap();
        drop(input);
        let Err(Failure::Refused { message, .. }) = run.finish() else { panic!("it failed") };
        assert_eq!(message.len(), WORDS);
    }

    #[test]
    fn a_tool_that_is_not_there_is_missing() {
        let started = Run::start(Path::new("/nowhere/iptables-save"), &[], Stdio::null(), Stdio::null());
        assert!(matches!(started, Err(Failure::Missing { program }) if program == "iptables-save"));
    }
}
