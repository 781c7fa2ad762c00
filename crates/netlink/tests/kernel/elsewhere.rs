//! Tests that need what few kernels have, ip_vs and dummy, run in a guest where this one has not.

use portway_lab::guest;
use std::process::Command;

/// All that are ignored otherwise, in one go: a boot takes longer than most of them.
#[test]
fn what_this_kernel_may_lack_is_tried_on_one_that_has_it() {
    const ARGUMENTS: [&str; 2] = ["--ignored", "--test-threads=2"];
    let this = std::env::current_exe().expect("the path of this program");
    let (success, text) = if guest::is_needed() || !guest::has_module("dummy") {
        let scratch = env!("CARGO_TARGET_TMPDIR").as_ref();
        let output = guest::run(&this, &ARGUMENTS, scratch).unwrap_or_else(|error| panic!("{error}"));
        (output.success(), output.text)
    } else {
        let output = Command::new(this).args(ARGUMENTS).output().expect("this program runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert!(success && !text.contains(" 0 passed"), "{text}");
}
