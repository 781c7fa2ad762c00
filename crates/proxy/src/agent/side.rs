//! A thread beside the event loop, for what must go on while the loop waits for the kernel.
//!
//! Loading tens of thousands of rules with iptables takes seconds, and the loop does nothing else meanwhile. Health
//! checks are answered here, and a request to stop is heard here too: a tool that is cut off in the middle changes
//! nothing.

use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};

/// How long the loop may take to stop by itself.
const GRACE: Duration = Duration::from_secs(3);

/// Starts the thread; what is spawned on its handle runs there.
pub(super) fn start() -> std::io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new().name("side".into()).spawn(move || runtime.block_on(mind_signals()))?;
    Ok(handle)
}

/// Ends the process if the loop does not in time.
async fn mind_signals() {
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
    tokio::time::sleep(GRACE).await;
    tracing::info!("stopping in the middle of a sync; what it did not commit is not changed");
    std::process::exit(0);
}
