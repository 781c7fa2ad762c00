//! Tests that need what few kernels have, ip_vs or dummy: where this one lacks it, a test runs itself in a guest.

use crate::namespace::alone;
use portway_lab::guest;

/// Runs `test`, called `name`, alone in a kernel that has a module.
pub(crate) fn with(module: &str, name: &str, test: impl FnOnce() + Send) {
    if guest::is_inside() || guest::has_module(module) {
        return alone(test);
    }
    let this = std::env::current_exe().expect("the path of this program");
    let scratch = env!("CARGO_TARGET_TMPDIR").as_ref();
    let output = guest::run(&this, &["--exact", name], scratch).unwrap_or_else(|error| panic!("{error}"));
    assert!(output.success() && output.text.contains(" 1 passed"), "in user-mode Linux: {}", output.text);
}
