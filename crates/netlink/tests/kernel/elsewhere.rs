//! Tests that need what few kernels have, ip_vs or dummy: where this one lacks it, a test runs itself in a guest.

use crate::namespace::alone;
use portway_lab::guest;

/// Runs `test`, called `name`, alone in a kernel that has a module.
pub(crate) fn with(module: &str, name: &str, test: impl FnOnce() + Send) {
    if guest::is_inside() || guest::has_module(module) {
        return alone(test);
    }
    if guest::is_unbootable() {
        return eprintln!("not run: guests do not boot");
    }
    guest::play(name, env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap_or_else(|error| panic!("{error}"));
}
