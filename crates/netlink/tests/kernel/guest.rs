//! Runs tests that need a kernel module that many hosts lack (ip_vs, dummy). If this host lacks it, the test runs in a
//! user-mode Linux guest.

use crate::namespace::in_new_namespace;
use portway_lab::guest as lab_guest;

/// Runs `test`, the test function with this `name`, in a new namespace of a kernel that has the module.
pub(crate) fn with_module(module: &str, name: &str, test: impl FnOnce() + Send) {
    if lab_guest::is_inside() || lab_guest::has_module(module) {
        return in_new_namespace(test);
    }
    if lab_guest::is_unbootable() {
        return eprintln!("not run: guests do not boot");
    }
    lab_guest::run_test(name, env!("CARGO_TARGET_TMPDIR").as_ref()).unwrap_or_else(|error| panic!("{error}"));
}
