//! A part of the benchmark that this program, run again, measures in user-mode Linux.

use crate::report::Report;
use portway_lab::guest;
use std::path::Path;

/// Runs this program with these arguments in a guest, and takes over what it reports. `what` is for names of files.
pub(crate) fn in_a_guest(arguments: &[String], what: &str, report: &mut Report) -> Result<(), String> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Beside the directory that the guest has for itself.
    let json = scratch.with_file_name(format!("bench-{what}-{}.json", std::process::id()));
    let arguments = [arguments, &[format!("--json={}", json.display())]].concat();
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let output = guest::run(&program, &arguments, scratch).map_err(|e| e.to_string())?;
    if !output.success() {
        return Err(format!("in user-mode Linux ({:?}):\n{}", output.status, output.text));
    }
    let read = report.read(&json).map_err(|e| format!("{}: {e}", json.display()));
    std::fs::remove_file(&json).ok();
    read
}
