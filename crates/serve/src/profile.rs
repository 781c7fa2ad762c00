//! CPU profiles on `/debug/pprof/profile`, as programs of the Go runtime serve them: `go tool pprof` reads them.
//!
//! A profile is taken by a timer signal that interrupts whichever thread uses the processor. Nothing runs between
//! profiles.

mod encoding;

use crate::page::page;
use axum::Router;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Samples per second of processor time, as in the Go runtime.
const FREQUENCY: i32 = 100;
/// Libraries whose functions are not unwound: a signal may interrupt them while they hold the unwinder's lock.
const NOT_UNWOUND: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];
/// The duration of a profile without the parameter `seconds`.
const DEFAULT_SECONDS: u64 = 30;
const LONGEST_SECONDS: u64 = 600;

const INDEX: &str = "/debug/pprof/profile?seconds=30: where this process spends processor time, for `go tool pprof`\n\
                     /debug/pprof/heap: how to find out what memory is used for\n";
const NO_HEAP: &str = "Portway allocates with the C library's malloc, which does not record who allocates. To see that, start it with\n\
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
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let profiler =
        match pprof::ProfilerGuardBuilder::default().frequency(FREQUENCY).blocklist(&NOT_UNWOUND).build() {
            Ok(profiler) => profiler,
            Err(error) => return failed(&error),
        };
    tokio::time::sleep(duration).await;
    // Finding the names of functions reads the binary's debug information, which takes a while.
    let report =
        tokio::task::spawn_blocking(move || profiler.report().build().map(|report| (report, profiler))).await;
    match report {
        Ok(Ok((report, _profiler))) => {
            let profile = encoding::encode(&report, started, duration, FREQUENCY);
            let name = [(header::CONTENT_DISPOSITION, "attachment; filename=\"profile\"")];
            (name, page("application/octet-stream", profile)).into_response()
        }
        Ok(Err(error)) => failed(&error),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn failed(error: &pprof::Error) -> Response {
    let message = match error {
        pprof::Error::Running => "another profile is being taken; try again when it has ended\n".to_owned(),
        other => format!("no profile can be taken: {other}\n"),
    };
    (StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
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
