//! An agent under test: a process in a node's namespace whose output can be searched.

use crate::log::Log;
use crate::namespace::Namespace;
use crate::{LabError, Process};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Lines of the log that an error shows.
const SHOWN: usize = 40;
/// How often the agent's status is checked while waiting for a line.
const STATUS_INTERVAL: Duration = Duration::from_millis(50);
/// How long an agent may take to end after SIGTERM.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    /// The output so far.
    log: Log,
    /// The program and its namespace, for error messages.
    name: String,
}

/// The error of waiting for an agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It did not do that in time.
    #[error("{agent} did not {expected} within {timeout:?}; its log ends with:\n{log}")]
    TimedOut {
        /// The agent.
        agent: String,
        /// The expected action.
        expected: String,
        /// How long it was waited for.
        timeout: Duration,
        /// The end of its log.
        log: String,
    },
    /// It ended instead.
    #[error("{agent} ended ({status}) before it could {expected}; its log ends with:\n{log}")]
    Ended {
        /// The agent.
        agent: String,
        /// How it ended.
        status: ExitStatus,
        /// The expected action.
        expected: String,
        /// The end of its log.
        log: String,
    },
    /// A system call failed.
    #[error(transparent)]
    System(#[from] LabError),
}

impl Agent {
    /// Starts `binary` with `args` in `namespace`.
    pub fn start<S: AsRef<OsStr>>(
        namespace: impl AsRef<Namespace>,
        binary: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Agent, LabError> {
        let mut command = Command::new(binary);
        command.args(args);
        Agent::run(namespace, command)
    }

    /// Starts a command in `namespace`; its output goes to the log.
    pub fn run(namespace: impl AsRef<Namespace>, mut command: Command) -> Result<Agent, LabError> {
        let namespace = namespace.as_ref();
        let program = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = format!("{} in {}", program.to_string_lossy(), namespace.name());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = namespace.spawn(command)?;
        let log = Log::default();
        if let Some(stdout) = process.child().stdout.take() {
            log.follow(stdout);
        }
        if let Some(stderr) = process.child().stderr.take() {
            log.follow(stderr);
        }
        Ok(Agent { process, log, name })
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its output.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Waits until a line of its output matches `predicate`, and returns the line. Lines written before the call count.
    pub fn wait_until(
        &mut self,
        expected: &str,
        predicate: impl Fn(&str) -> bool,
        timeout: Duration,
    ) -> Result<String, AgentError> {
        let deadline = Instant::now() + timeout;
        let mut seen = 0;
        loop {
            let until = deadline.min(Instant::now() + STATUS_INTERVAL);
            if let Some(line) = self.log.wait_for(&mut seen, &predicate, until) {
                return Ok(line);
            }
            let status = self.status()?;
            let (agent, expected, log) = (self.name.clone(), expected.to_owned(), self.log.tail(SHOWN));
            match status {
                // While a pipe is open there may be more to read, from the agent itself or from its children.
                Some(status) if self.log.is_complete() => {
                    return Err(AgentError::Ended { agent, status, expected, log });
                }
                _ if Instant::now() >= deadline => {
                    return Err(AgentError::TimedOut { agent, expected, timeout, log });
                }
                _ => {}
            }
        }
    }

    /// Waits until a line of its output contains `text`.
    pub fn wait_for(&mut self, text: &str, timeout: Duration) -> Result<String, AgentError> {
        self.wait_until(&format!("write {text:?}"), |line| line.contains(text), timeout)
    }

    /// How it ended, if it has.
    pub fn status(&mut self) -> Result<Option<ExitStatus>, AgentError> {
        let failed = |source| LabError::system(format!("get the status of {}", self.name), source);
        Ok(self.process.try_wait().map_err(failed)?)
    }

    /// Sends it a signal.
    pub fn signal(&mut self, signal: Signal) -> Result<(), AgentError> {
        let failed = |source| LabError::system(format!("signal {}", self.name), source);
        Ok(self.process.signal(signal).map_err(failed)?)
    }

    /// Sends SIGTERM and waits for its end.
    pub fn terminate(mut self) -> Result<(ExitStatus, Log), AgentError> {
        self.signal(Signal::TERM)?;
        let ended = crate::eventually(TERMINATE_TIMEOUT, || match self.process.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("still running".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        let status = ended.map_err(|_| AgentError::TimedOut {
            agent: self.name.clone(),
            expected: "end after SIGTERM".into(),
            timeout: TERMINATE_TIMEOUT,
            log: self.log.tail(SHOWN),
        })?;
        Ok((status, self.log.clone()))
    }

    /// Kills it (SIGKILL), so that it cannot clean up.
    pub fn kill(self) -> Log {
        let Agent { process, log, .. } = self;
        drop(process);
        log
    }
}
