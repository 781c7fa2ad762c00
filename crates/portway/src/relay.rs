//! `portway relay`: the relay process of the userspace mode. The agent starts it.

use anyhow::Context;
use clap::Args;
use portway_serve::{LogFormat, logging};
use portway_userspace::{Handle, Relay};
use tokio::signal::unix::{SignalKind, signal};

/// The flags that the agent passes to the relay.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Verbosity of the log
    #[arg(long, default_value_t = 0)]
    v: u32,
    /// Write logs as JSON
    #[arg(long)]
    json: bool,
}

/// Runs until the relay is shut down and its last connection has ended.
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let format = if flags.json { LogFormat::Json } else { LogFormat::Text };
    logging::start(format, flags.v);
    // The agent starts the relay by /proc/self/exe, whose last part would be its name in ps and ss.
    _ = rustix::thread::set_name(c"portway");
    let relay = Relay::start().context("cannot start the worker threads of the relay")?;
    let handle = relay.handle();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || handle_signals(&handle))
        .context("cannot start the signal thread")?;
    relay.run().context("the relay failed")
}

/// Shuts down on SIGTERM and SIGINT, unless an agent is connected: a service manager signals both processes, and the
/// agent has to change the rules before the relay may stop accepting.
fn handle_signals(handle: &Handle) {
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
            handle.shut_down();
        }
    });
}
