//! Guests that are shared, that end or are abandoned, and that cannot boot.

use super::boot::{SharedDirectory, boot_with};
use super::pool::Slot;
use super::*;
use std::path::PathBuf;

const INIT: &str = include_str!("init.sh");

/// A scratch directory, and so a pool, of one test; removed when dropped.
struct TestPool {
    path: PathBuf,
}

impl TestPool {
    fn new(name: &str) -> TestPool {
        // Next to the test program, because a guest mounts a tmpfs over /tmp.
        let program = std::env::current_exe().expect("the path of this program");
        let path = program.with_file_name(format!("guest-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("scratch")).expect("a scratch directory");
        fs::create_dir_all(path.join("shared")).expect("a shared directory");
        TestPool { path }
    }

    fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    fn sh(&self, script: &str) -> Output {
        run(Path::new("/bin/sh"), &["-c", script], &self.scratch()).expect("a guest")
    }

    /// The error, of one line, of a guest with this first process, which must fail.
    fn failure(&self, init: &str) -> String {
        let shared = SharedDirectory::new(self.path.join("shared"));
        let line = boot_with(&shared, &self.scratch(), init).expect_err("it booted").to_string();
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }
}

/// Whether guests do not boot here, so that the test cannot run; prints that.
fn no_guests() -> bool {
    let unbootable = is_unbootable();
    if unbootable {
        eprintln!("not run: guests do not boot");
    }
    unbootable
}

impl Drop for TestPool {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

#[test]
fn consecutive_commands_share_a_guest_with_its_own_modules_and_files() {
    if no_guests() {
        return;
    }
    let pool = TestPool::new("shared");
    let script = "modprobe -n ip_vs_lc && grep -c ^ip_vs /proc/modules && echo one > \"$0\" && cat \"$0\"";
    let file = pool.scratch().join("file");
    let first = run(Path::new("/bin/sh"), &["-c", script, &file.display().to_string()], &pool.scratch());
    let first = first.expect("a guest");
    assert!(first.success() && first.text.ends_with("one\n"), "{first:?}");
    assert!(!file.exists(), "the guest wrote to the host's {}", file.display());
    // The same guest: the file exists. The exit status is returned.
    let second = pool.sh(&format!("cat {}; exit 7", file.display()));
    assert_eq!(second, Output { status: Some(7), text: "one\n".into() });
    // A failed command may have left processes or files behind, so the next command runs in another guest.
    assert!(pool.sh(&format!("! ls {}", file.display())).success(), "it is the same guest");
}

#[test]
fn a_guest_that_ends_is_reported_and_the_next_command_runs_in_another() {
    if no_guests() {
        return;
    }
    let pool = TestPool::new("dying");
    let ended = pool.sh("echo last line; sync; echo o > /proc/sysrq-trigger; sleep 60");
    assert_eq!(ended.status, None);
    assert!(ended.text.contains("last line"), "{ended:?}");
    assert!(pool.sh("true").success());
}

#[test]
fn a_guest_left_busy_by_a_killed_process_is_replaced() {
    if no_guests() {
        return;
    }
    let pool = TestPool::new("busy");
    let mut slot = Slot::take(&pool.scratch()).expect("a slot");
    let file = pool.scratch().join("file").display().to_string();
    slot.run(Path::new("/bin/touch"), &[&file]).expect("a guest");
    slot.submit(Path::new("/bin/sleep"), &["1000"]).expect("a command");
    drop(slot);
    assert!(pool.sh(&format!("! ls {file}")).success(), "it is the same guest");
}

#[test]
fn two_processes_at_the_same_time_have_two_guests() {
    if no_guests() {
        return;
    }
    let pool = TestPool::new("two");
    let mut slots = [(); 2].map(|()| Slot::take(&pool.scratch()).expect("a slot"));
    let file = pool.scratch().join("file");
    let script = format!("ls {0}; touch {0}", file.display());
    for slot in &mut slots {
        let output = slot.run(Path::new("/bin/sh"), &["-c", &script]).expect("a guest");
        assert!(output.text.contains("No such file"), "{output:?}");
    }
}

#[test]
fn the_error_names_the_failed_step_and_the_package_to_install() {
    if no_guests() {
        return;
    }
    let pool = TestPool::new("failing");
    let cases = [
        (
            INIT.replace("/usr/lib/uml/modules", "/nowhere"),
            ["find this kernel's modules", "no /nowhere/", "package user-mode-linux"],
        ),
        (
            INIT.replace("ip_vs_rr", "ip_vs_nonsense"),
            ["load a module: modprobe ip_vs_nonsense", "not found in directory", "packages kmod"],
        ),
        (
            INIT.replace("mount -t sysfs", "mount -t nonsense"),
            ["could not mount /sys: mount -t nonsense sysfs /sys", "mount: /sys: ", "package mount"],
        ),
        (INIT.replace("lo up", "nonsense up"), ["loopback", "nonsense", "package iproute2"]),
    ];
    for (init, words) in cases {
        let line = pool.failure(&init);
        assert!(words.iter().all(|word| line.contains(word)), "not {words:?}: {line}");
        assert!(line.starts_with("user-mode Linux cannot boot: could not "), "{line}");
    }
}

#[test]
fn a_first_process_that_cannot_run_is_reported_in_one_line() {
    if no_guests() {
        return;
    }
    let pool = TestPool::new("no-shell");
    let line = pool.failure("#!/nowhere/sh\n");
    assert!(line.starts_with("user-mode Linux cannot boot: linux.uml ended with "), "{line}");
}
