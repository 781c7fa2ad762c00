//! Runs the tool. Its standard error is read by a thread, because both that and its input may exceed the size of a
//! pipe. Another thread kills the tool if it takes too long.

use crate::failure::{Failure, diagnose};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running tool is logged each time this has passed.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// After this many intervals the tool is killed; tables that it has not committed do not change.
const KILL_AFTER_INTERVALS: u32 = 60;
/// The number of bytes of standard error that are kept.
const MESSAGE_LIMIT: usize = 1 << 16;

/// A running tool.
#[derive(Debug)]
pub(crate) struct Run {
    program: PathBuf,
    child: Child,
    stderr: JoinHandle<Vec<u8>>,
    done: Sender<()>,
    watchdog: JoinHandle<()>,
}

impl Run {
    /// Starts the tool.
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
        let pipe = child.stderr.take();
        let stderr = std::thread::spawn(move || pipe.map(read_limited).unwrap_or_default());
        let (done, ended) = channel();
        let (process, program_name) = (child.id(), name(program));
        let watchdog = std::thread::spawn(move || {
            for interval in 1..=KILL_AFTER_INTERVALS {
                match ended.recv_timeout(LOG_INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {
                        let seconds = (LOG_INTERVAL * interval).as_secs();
                        tracing::info!(program = program_name, seconds, "the program is still running");
                    }
                    _ => return,
                }
            }
            let seconds = (LOG_INTERVAL * KILL_AFTER_INTERVALS).as_secs();
            tracing::error!(program = program_name, seconds, "the program did not end in time; killing it");
            if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
                // The process was not waited for yet, so its id is not used again.
                kill_process(pid, Signal::KILL).ok();
            }
        });
        Ok(Run { program: program.to_owned(), child, stderr, done, watchdog })
    }

    /// The standard input of the tool.
    pub(crate) fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The standard output of the tool.
    pub(crate) fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The process id of the tool.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the tool ends.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Run { program, mut child, stderr, done, watchdog } = self;
        // Standard error is closed when the tool ends.
        let text = stderr.join().unwrap_or_default();
        drop(done);
        watchdog.join().ok();
        let status = child.wait().map_err(|source| Failure::Io { program: name(&program), source })?;
        let message = String::from_utf8_lossy(&text).trim().to_owned();
        if status.success() {
            if !message.is_empty() {
                tracing::debug!(program = name(&program), "{message}");
            }
            return Ok(());
        }
        Err(diagnose(name(&program), status, message))
    }
}

/// Reads to the end, and keeps the first [`MESSAGE_LIMIT`] bytes.
fn read_limited(mut pipe: ChildStderr) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = pipe.read(&mut buffer) {
        let room = MESSAGE_LIMIT.saturating_sub(kept.len()).min(n);
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

    /// Input and standard error both exceed the size of a pipe; neither process may block.
    #[test]
    fn long_input_and_long_messages_do_not_deadlock() {
        let script = "head -c 300000 /dev/zero | tr '\\0' e >&2; cat >/dev/null; exit 1";
        let mut run =
            Run::start(Path::new("/bin/sh"), &["-c", script], Stdio::piped(), Stdio::null()).unwrap();
        let mut input = run.input().unwrap();
        input.write_all(&vec![b'x'; 300_000]).unwrap();
        drop(input);
        let Err(Failure::Refused { message, .. }) = run.finish() else { panic!("the tool exits with 1") };
        assert_eq!(message.len(), MESSAGE_LIMIT);
    }

    #[test]
    fn a_tool_that_does_not_exist_is_reported_as_missing() {
        let started = Run::start(Path::new("/nowhere/iptables-save"), &[], Stdio::null(), Stdio::null());
        assert!(matches!(started, Err(Failure::Missing { program }) if program == "iptables-save"));
    }
}
