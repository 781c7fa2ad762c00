//! The thread that runs the health and metrics servers, and handles signals while the agent's loop is busy.
//!
//! Loading tens of thousands of rules with iptables takes seconds, and the loop does nothing else meanwhile. This
//! thread answers health checks during that time, and ends the process after a signal if the loop does not. That is
//! safe: a tool that is killed in the middle of a transaction changes nothing.

use portway_serve::logging;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};

/// How long the loop may take to stop by itself, at least.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// The thread with the servers.
#[derive(Debug)]
pub(super) struct ServerThread {
    handle: Handle,
    loop_has_ended: Arc<AtomicBool>,
}

impl ServerThread {
    /// The handle of the thread's runtime.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Records that the loop has ended. The rest of the shutdown has no time limit: only a second signal cuts it short.
    pub(super) fn loop_has_ended(&self) {
        self.loop_has_ended.store(true, Relaxed);
    }
}

/// Starts the thread.
pub(super) fn start(grace: Duration) -> std::io::Result<ServerThread> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let thread = ServerThread { handle: runtime.handle().clone(), loop_has_ended: Arc::default() };
    let ended = thread.loop_has_ended.clone();
    std::thread::Builder::new()
        .name("servers".into())
        .spawn(move || runtime.block_on(watch_signals(grace.max(GRACE), &ended)))?;
    Ok(thread)
}

/// Ends the process if the loop has not ended a grace period after a signal. If it has, a second signal ends the
/// process.
async fn watch_signals(grace: Duration, loop_has_ended: &AtomicBool) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // The loop listens for signals too, and reports why it cannot.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tokio::time::sleep(grace).await;
    if !loop_has_ended.load(Relaxed) {
        exit("stopping during a sync; its uncommitted changes are discarded");
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    exit("stopping at once because of a second signal");
}

fn exit(message: &str) -> ! {
    tracing::info!("{message}");
    logging::flush();
    std::process::exit(0)
}
