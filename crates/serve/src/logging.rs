//! Structured logging to standard error that never blocks the logging thread.
//!
//! Lines go through a bounded queue to a thread that writes them. When the reader of a pipe stops reading, the queue
//! fills up, and further lines are dropped and counted; once the pipe drains, one line reports how many. [`flush`]
//! waits up to a second for the queue to be written, before an exit.
//!
//! kube-proxy's verbosity is a number. At 0 there is one line per change of state; at 2 each changed Service is logged
//! ([`CHANGES`]), at 4 each sync with its details (`DEBUG`), at 6 requests and events (`TRACE`), at 8 the libraries too.

mod fields;
mod json;
mod queue;
mod text;

use json::KlogJson;
use queue::LogQueue;
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;
use text::KlogText;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

/// Libraries that log too much for operation.
const LIBRARIES: [&str; 2] = ["hyper", "rustls"];
/// The target of lines about changed objects, which are written at verbosity 2.
pub const CHANGES: &str = "portway_changes";
/// How long the last lines may take to be written.
const PATIENCE: Duration = Duration::from_secs(1);

static LOG: OnceLock<Log> = OnceLock::new();

/// The log of this process.
struct Log {
    filter: Handle<Targets, Registry>,
    queue: LogQueue,
    format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are their names")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Starts logging.
pub fn start(format: LogFormat, verbosity: u32) {
    let queue = match LogQueue::start(std::io::stderr(), format) {
        Ok(queue) => queue,
        Err(error) => return eprintln!("portway: no logs: cannot start a thread: {error}"),
    };
    let (filter, handle) = reload::Layer::new(filter(verbosity));
    LOG.set(Log { filter: handle, queue: queue.clone(), format }).ok();
    let registry = tracing_subscriber::registry().with(filter);
    let color = std::io::stderr().is_terminal();
    let started = match format {
        LogFormat::Json => registry.with(fmt::layer().event_format(KlogJson).with_writer(queue)).try_init(),
        LogFormat::Text => {
            let layer = fmt::layer().with_ansi(color).event_format(KlogText).with_writer(queue);
            registry.with(layer).try_init()
        }
    };
    if let Err(error) = started {
        eprintln!("portway: no logs: {error}");
    }
}

/// Waits until the lines so far are written, up to a second.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.queue.flush(PATIENCE);
    }
}

/// Prints the last message of the process to standard error, after the lines so far; in `format` if logging has not
/// begun. Waits up to a second: a pipe that is
/// not read must not keep the process from ending.
pub fn print_last(message: String, format: LogFormat) {
    flush();
    let message = match LOG.get().map_or(format, |log| log.format) {
        LogFormat::Text => message,
        LogFormat::Json => json::error(&message).to_string(),
    };
    let (done, printed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        eprintln!("{message}");
        _ = done.send(());
    });
    _ = printed.recv_timeout(PATIENCE);
}

/// Sets the verbosity.
pub fn set_verbosity(verbosity: u32) {
    if let Some(log) = LOG.get()
        && let Err(error) = log.filter.reload(filter(verbosity))
    {
        tracing::error!("the log level could not be changed: {error}");
    }
}

/// The verbosity at which a line is written.
fn verbosity_of(level: tracing::Level, target: &str) -> u32 {
    match level {
        tracing::Level::DEBUG => 4,
        tracing::Level::TRACE => 6,
        _ if target == CHANGES => 2,
        _ => 0,
    }
}

/// The levels of a verbosity. `PORTWAY_LOG` overrides them: levels by target, as in `info,portway_client=debug`.
fn filter(verbosity: u32) -> Targets {
    // Every crate of Portway, by the beginning of its name.
    let portway = match verbosity {
        0..=3 => LevelFilter::INFO,
        4 | 5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let changes = if verbosity >= 2 { LevelFilter::INFO } else { LevelFilter::OFF };
    let targets = Targets::new().with_target("portway", portway).with_target(CHANGES, changes);
    let targets = match verbosity {
        0..=7 => targets
            .with_default(LevelFilter::INFO)
            .with_targets(LIBRARIES.map(|target| (target, LevelFilter::WARN))),
        _ => targets.with_default(LevelFilter::TRACE),
    };
    let Ok(directives) = std::env::var("PORTWAY_LOG") else { return targets };
    directives.parse().unwrap_or_else(|error| {
        eprintln!("portway: PORTWAY_LOG={directives} is invalid and ignored: {error}");
        targets
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn each_verbosity_adds_lines() {
        let written = |verbosity: u32| {
            let filter = filter(verbosity);
            let line = |target: &str, level: Level| u8::from(filter.would_enable(target, &level));
            [
                line("portway_proxy::agent", Level::INFO),
                line(CHANGES, Level::INFO),
                line("portway_proxy::agent", Level::DEBUG),
                line("portway_client::kubernetes", Level::TRACE),
                line("hyper::client", Level::DEBUG),
            ]
        };
        assert_eq!(written(0), [1, 0, 0, 0, 0]);
        assert_eq!(written(2), [1, 1, 0, 0, 0]);
        assert_eq!(written(4), [1, 1, 1, 0, 0]);
        assert_eq!(written(6), [1, 1, 1, 1, 0]);
        assert_eq!(written(8), [1, 1, 1, 1, 1]);
    }
}
