//! Runs a part of the benchmark in user-mode Linux.

use crate::report::Report;
use portway_lab::guest;
use std::path::Path;

/// Runs this program with these arguments in a guest, and adds the rows of its report. `name` is for the file name.
pub(crate) fn in_a_guest(arguments: &[String], name: &str, report: &mut Report) -> Result<(), String> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Next to the scratch directory, which belongs to the guest.
    let json = scratch.with_file_name(format!("bench-{name}-{}.json", std::process::id()));
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
