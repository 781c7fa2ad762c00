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
/// How often, while waiting for a line, to look whether the agent still lives.
const LOOK_UP: Duration = Duration::from_millis(50);
/// How long a terminated agent may take to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    log: Log,
    /// The output so far.
    name: String,
}

/// Why waiting for an agent did not end well.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It did not do in time what it was waited for.
    #[error("{agent} did not {what} within {timeout:?}; its log ends with:\n{log}")]
    TimedOut {
        /// Which agent.
        agent: String,
        /// What it was waited for.
        what: String,
        /// How long.
        timeout: Duration,
        /// The end of its log.
        log: String,
    },
    /// It ended instead.
    #[error("{agent} ended ({status}) instead of going on to {what}; its log ends with:\n{log}")]
    Ended {
        /// Which agent.
        agent: String,
        /// How it ended.
        status: ExitStatus,
        /// What it was waited for.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// The system refused something.
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

    /// What it has written.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Waits until a line of its output fulfils `predicate`, and returns the line. Lines written before count.
    pub fn wait_until(
        &mut self,
        what: &str,
        predicate: impl Fn(&str) -> bool,
        timeout: Duration,
    ) -> Result<String, AgentError> {
        let deadline = Instant::now() + timeout;
        let mut seen = 0;
        loop {
            let until = deadline.min(Instant::now() + LOOK_UP);
            if let Some(line) = self.log.wait_for(&mut seen, &predicate, until) {
                return Ok(line);
            }
            let status = self.status()?;
            let (agent, what, log) = (self.name.clone(), what.to_owned(), self.log.tail(SHOWN));
            match status {
                // While a pipe is open there may be more to read: of the agent itself or of a child of its.
                Some(status) if self.log.is_complete() => {
                    return Err(AgentError::Ended { agent, status, what, log });
                }
                _ if Instant::now() >= deadline => {
                    return Err(AgentError::TimedOut { agent, what, timeout, log });
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
        let failed = |source| LabError::system(format!("look after {}", self.name), source);
        Ok(self.process.try_wait().map_err(failed)?)
    }

    /// Sends it a signal.
    pub fn signal(&mut self, signal: Signal) -> Result<(), AgentError> {
        let failed = |source| LabError::system(format!("signal {}", self.name), source);
        Ok(self.process.signal(signal).map_err(failed)?)
    }

    /// Asks it to end (SIGTERM) and waits for that.
    pub fn terminate(mut self) -> Result<(ExitStatus, Log), AgentError> {
        self.signal(Signal::TERM)?;
        let ended = crate::eventually(FAREWELL, || match self.process.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("still running".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        let status = ended.map_err(|_| AgentError::TimedOut {
            agent: self.name.clone(),
            what: "end when asked to".into(),
            timeout: FAREWELL,
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
