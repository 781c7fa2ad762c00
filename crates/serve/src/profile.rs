//! CPU profiles on `/debug/pprof/profile`, as programs of the Go runtime serve them: `go tool pprof` reads them.
//!
//! A profile is taken by a timer signal (SIGPROF) that interrupts whichever thread uses the processor. No signal is sent
//! between profiles. The memory for samples (some 70 MB) and for the debug information in which names are found (some
//! 200 MB, of an unstripped binary) is kept after the first one.

mod encoding;

use crate::page::page;
use axum::Router;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use std::fs::DirBuilder;
use std::future::ready;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Samples per second of processor time, as in the Go runtime.
const FREQUENCY: i32 = 100;
/// Libraries in which samples are left out: a signal may interrupt them while they hold the unwinder's lock.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
const LEFT_OUT: [&str; 4] = ["libc.so", "libgcc", "pthread", "vdso"];
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
/// The duration of a profile without the parameter `seconds`.
const DEFAULT_SECONDS: u64 = 30;
const LONGEST_SECONDS: u64 = 600;

const INDEX: &str = "/debug/pprof/profile?seconds=30: where this process spends processor time, for `go tool pprof`\n\
                     /debug/pprof/heap: how to find out what memory is used for\n";
const NO_HEAP: &str = "Portway allocates with the C library's malloc, which records no call sites. To see them, start it with\n\
                       LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=prof:true,lg_prof_interval:24, or under heaptrack.\n\
                       /metrics has process_resident_memory_bytes.\n";
const UNKNOWN: &str = "there is no such profile; /debug/pprof/ lists those that there are\n";

/// The pages under `/debug/pprof`. Unless `enabled`, they are a 404 that names `switch`, the setting that enables them.
pub fn profile_router(
    enabled: impl Fn() -> bool + Clone + Send + Sync + 'static,
    switch: &'static str,
) -> Router {
    let disabled: Arc<dyn Fn() -> Option<Response> + Send + Sync> = Arc::new(move || {
        let message = format!("profiling is off; set {switch} to turn it on\n");
        (!enabled()).then(|| (StatusCode::NOT_FOUND, message).into_response())
    });
    let unless_disabled = |status: StatusCode, text: &'static str| {
        let disabled = disabled.clone();
        any(move || ready(disabled().unwrap_or_else(|| (status, text).into_response())))
    };
    let profile = {
        let disabled = disabled.clone();
        move |uri: Uri| async move {
            match disabled() {
                Some(answer) => answer,
                None => cpu_profile(uri.query().unwrap_or_default()).await,
            }
        }
    };
    Router::new()
        .route("/debug/pprof", unless_disabled(StatusCode::OK, INDEX))
        .route("/debug/pprof/", unless_disabled(StatusCode::OK, INDEX))
        .route("/debug/pprof/profile", any(profile))
        .route("/debug/pprof/heap", unless_disabled(StatusCode::NOT_FOUND, NO_HEAP))
        .route("/debug/pprof/{*other}", unless_disabled(StatusCode::NOT_FOUND, UNKNOWN))
}

/// Takes a profile for as long as the query says. If the client disconnects, profiling ends with the connection.
async fn cpu_profile(query: &str) -> Response {
    let duration = match duration(query) {
        Ok(duration) => duration,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    // The profiler itself would make a second request spin until the first one has its names.
    let Ok(_only) = ONE_AT_A_TIME.try_lock() else {
        return failed("another profile is being taken; try again when it has ended");
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Starting and finding the names of functions reads the binary's debug information, which takes a while.
    let profiler = match spawn_blocking(start).await {
        Ok(Ok(profiler)) => profiler,
        Ok(Err(message)) => return failed(&message),
        Err(error) => return failed(&error.to_string()),
    };
    tokio::time::sleep(duration).await;
    let profile = spawn_blocking(move || {
        let report = profiler.report().build().map_err(|error| error.to_string())?;
        if !report.data.is_empty() && report.data.keys().all(|stack| stack.frames.is_empty()) {
            return Err(
                "no function has a name: put portway.debug of the release beside the binary".to_owned()
            );
        }
        Ok(encoding::encode(&report, started, duration, FREQUENCY))
    });
    match profile.await {
        Ok(Ok(profile)) => {
            let name = [(header::CONTENT_DISPOSITION, "attachment; filename=\"profile\"")];
            (name, page("application/octet-stream", profile)).into_response()
        }
        Ok(Err(message)) => failed(&message),
        Err(error) => failed(&error.to_string()),
    }
}

/// Starts the profiler. It keeps a file for samples that do not fit into memory, in a directory that only this user can
/// enter.
fn start() -> Result<pprof::ProfilerGuard<'static>, String> {
    let directory = private_directory().map_err(|e| format!("no private directory for samples: {e}"))?;
    // Fails if it was set before, to the same directory.
    _ = tempfile::env::override_temp_dir(&directory);
    let builder = pprof::ProfilerGuardBuilder::default().frequency(FREQUENCY);
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
    let builder = builder.blocklist(&LEFT_OUT);
    builder
        .build()
        .map_err(|error| format!("no profile can be taken, with samples in {}: {error}", directory.display()))
}

/// A directory that only this user can enter: in the one for run-time files, or where that is not this user's, in the one
/// for temporary files.
fn private_directory() -> std::io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let run = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from("/run"), PathBuf::from);
    private(run.join("portway-profile"), user)
        .or_else(|_| private(std::env::temp_dir().join(format!("portway-profile-{user}")), user))
}

/// Creates a directory that only `user` can enter. One that exists has to be such a directory.
fn private(directory: PathBuf, user: u32) -> std::io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = directory.symlink_metadata()?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(directory);
    }
    let message = format!("{} is not a directory of this user alone", directory.display());
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, message))
}

fn failed(message: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{message}\n")).into_response()
}

/// The parameter `seconds`.
fn duration(query: &str) -> Result<Duration, String> {
    let Some(value) = query.split('&').find_map(|pair| pair.strip_prefix("seconds=")) else {
        return Ok(Duration::from_secs(DEFAULT_SECONDS));
    };
    match value.parse() {
        Ok(seconds @ 1..=LONGEST_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("seconds={value}: want a number between 1 and {LONGEST_SECONDS}\n")),
    }
}

#[cfg(test)]
mod tests;
