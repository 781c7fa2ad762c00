//! The thread that runs the health and metrics servers, and watches for signals while the agent's loop is busy.
//!
//! Loading tens of thousands of rules with iptables takes seconds, and the loop does nothing else meanwhile. Health
//! checks are answered on this thread, and a request to stop is heard here too: a tool that is killed in the middle
//! of a transaction changes nothing.

use portway_serve::logging;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};

/// How long the loop may take to stop by itself.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// The thread with the servers.
#[derive(Debug)]
pub(super) struct ServerThread {
    handle: Handle,
    loop_has_ended: Arc<AtomicBool>,
}

impl ServerThread {
    /// Spawns tasks on the thread.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The loop is ending by itself, and takes the time it needs: the process is not to be ended under it.
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

/// Ends the process if the loop does not end in time after a signal, or when a second signal comes.
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
        exit("stopping in the middle of a sync; what it did not commit is not changed");
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    exit("stopping at once");
}

fn exit(why: &str) -> ! {
    tracing::info!("{why}");
    logging::flush();
    std::process::exit(0)
}
