//! A thread beside the event loop, for what must go on while the loop waits for the kernel.
//!
//! Loading tens of thousands of rules with iptables takes seconds, and the loop does nothing else meanwhile. Health
//! checks are answered here, and a request to stop is heard here too: a tool that is cut off in the middle changes
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};

/// How long the loop may take to stop by itself.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// The thread.
#[derive(Debug)]
pub(super) struct Side {
    handle: Handle,
    loop_has_ended: Arc<AtomicBool>,
}

impl Side {
    /// What is spawned on it runs there.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The loop has heard that it is to end, and takes the time it needs for what is left to do.
    pub(super) fn loop_has_ended(&self) {
        self.loop_has_ended.store(true, Relaxed);
    }
}

/// Starts the thread.
pub(super) fn start(grace: Duration) -> std::io::Result<Side> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let side = Side { handle: runtime.handle().clone(), loop_has_ended: Arc::default() };
    let ended = side.loop_has_ended.clone();
    std::thread::Builder::new()
        .name("side".into())
        .spawn(move || runtime.block_on(mind_signals(grace.max(GRACE), &ended)))?;
    Ok(side)
}

/// Ends the process if the loop does not in time, or if it is asked twice.
async fn mind_signals(grace: Duration, loop_has_ended: &AtomicBool) {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // The loop listens too, and says why it cannot.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tokio::time::sleep(grace).await;
    if !loop_has_ended.load(Relaxed) {
        tracing::info!("stopping in the middle of a sync; what it did not commit is not changed");
        std::process::exit(0);
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping at once");
    std::process::exit(0);
}
