//! Logs: structured and calm, on standard error.
//!
//! kube-proxy's verbosity is a number; here 0 to 2 is what operators need, 3 and 4 say what each sync did, more is
//! for finding faults.

use portway_proxy::config::LogFormat;
use std::io::IsTerminal;
use std::sync::OnceLock;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

static LEVEL: OnceLock<Handle<EnvFilter, Registry>> = OnceLock::new();

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

/// `PORTWAY_LOG` overrides it all, in tracing's own syntax.
fn filter(verbosity: u32) -> EnvFilter {
    if let Ok(filter) = EnvFilter::try_from_env("PORTWAY_LOG") {
        return filter;
    }
    let directives = match verbosity {
        0..=2 => "info,kube=warn,hyper=warn,tower=warn,rustls_platform_verifier=off",
        3 | 4 => {
            "info,portway=debug,portway_proxy=debug,portway_client=debug,portway_nftables=debug,portway_iptables=debug,portway_userspace=debug"
        }
        5..=7 => "debug,hyper=info,tower=info,h2=info",
        _ => "trace",
    };
    EnvFilter::new(directives)
}
