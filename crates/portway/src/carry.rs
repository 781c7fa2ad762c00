//! `portway carry`: the process that carries the connections of the userspace mode.
//!
//! The agent starts it; nobody else has to.

use crate::logging;
use anyhow::Context;
use clap::Args;
use portway_proxy::config::LogFormat;
use portway_userspace::{Carrier, Handle};
use tokio::signal::unix::{SignalKind, signal};

/// What the agent says.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// How much is said
    #[arg(long, default_value_t = 0)]
    v: u32,
    /// Write logs as JSON
    #[arg(long)]
    json: bool,
}

/// Carries until told to leave, and then until the last connection has ended.
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let format = if flags.json { LogFormat::Json } else { LogFormat::Text };
    logging::start(format, flags.v);
    let carrier = Carrier::start().context("start the threads that carry connections")?;
    let handle = carrier.handle();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || heed(&handle))
        .context("start a thread")?;
    carrier.run().context("carry connections")
}

/// Hears signals. While there is an agent, it is for the agent to say when to leave: a signal to end reaches both, and the
/// rules have to lead elsewhere first.
fn heed(handle: &Handle) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async {
        let (Ok(mut terminate), Ok(mut interrupt)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            return;
        };
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            handle.end();
        }
    });
}
