//! Logs: structured and calm, on standard error.
//!
//! kube-proxy's verbosity is a number; here 0 to 2 is what operators need, 3 and 4 say what each sync did, more is
//! for finding faults.

use portway_proxy::config::LogFormat;
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

/// They say more than an operator wants to know.
const LIBRARIES: [&str; 2] = ["hyper", "rustls"];

static LEVEL: OnceLock<Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging.
pub(crate) fn start(format: LogFormat, verbosity: u32) {
    let (filter, handle) = reload::Layer::new(filter(verbosity));
    LEVEL.set(handle).ok();
    let registry = tracing_subscriber::registry().with(filter);
    let color = std::io::stderr().is_terminal();
    let started = match format {
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init(),
        LogFormat::Text => {
            let layer = fmt::layer().with_ansi(color).with_target(false).with_writer(std::io::stderr);
            registry.with(layer).try_init()
        }
    };
    if let Err(error) = started {
        eprintln!("portway: no logs: {error}");
    }
}

/// Changes how much is said.
pub(crate) fn set_verbosity(verbosity: u32) {
    if let Some(handle) = LEVEL.get()
        && let Err(error) = handle.reload(filter(verbosity))
    {
        eprintln!("portway: the log level stays as it is: {error}");
    }
}

/// `PORTWAY_LOG` overrides it all: levels by target, as in `info,portway_client=debug`.
fn filter(verbosity: u32) -> Targets {
    let level = match verbosity {
        0..=4 => LevelFilter::INFO,
        5..=7 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let usual = Targets::new().with_default(level);
    let usual = match verbosity {
        0..=2 => usual.with_targets(LIBRARIES.map(|target| (target, LevelFilter::WARN))),
        // Every crate of ours, by the beginning of its name.
        3 | 4 => usual.with_target("portway", LevelFilter::DEBUG),
        5..=7 => usual.with_targets(LIBRARIES.map(|target| (target, LevelFilter::INFO))),
        _ => usual,
    };
    let Ok(directives) = std::env::var("PORTWAY_LOG") else { return usual };
    directives.parse().unwrap_or_else(|error| {
        eprintln!("portway: PORTWAY_LOG={directives} is not understood, so --v counts: {error}");
        usual
    })
}
