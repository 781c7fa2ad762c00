//! Guests that boot, are shared, are left behind, and that cannot boot.

use super::boot::{Shared, boot_with};
use super::pool::Slot;
use super::*;
use std::path::PathBuf;

const INIT: &str = include_str!("init.sh");

/// A scratch directory of its own, and so a pool of its own; gone when dropped.
struct Ground {
    path: PathBuf,
}

impl Ground {
    fn new(name: &str) -> Ground {
        // Where the test program is: a guest covers the directory for temporary files.
        let program = std::env::current_exe().expect("the path of this program");
        let path = program.with_file_name(format!("guest-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("scratch")).expect("a scratch directory");
        fs::create_dir_all(path.join("shared")).expect("a shared directory");
        Ground { path }
    }

    fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    fn sh(&self, script: &str) -> Output {
        run(Path::new("/bin/sh"), &["-c", script], &self.scratch()).expect("a guest")
    }

    /// The one line that a guest with another first process fails with.
    fn failure(&self, init: &str) -> String {
        let shared = Shared::new(self.path.join("shared"));
        let line = boot_with(&shared, &self.scratch(), init).expect_err("it booted").to_string();
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }
}

/// Whether this test run has found that guests do not boot, and says so once for all tests.
fn no_guests() -> bool {
    let none = is_unbootable();
    if none {
        eprintln!("not run: guests do not boot");
    }
    none
}

impl Drop for Ground {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

#[test]
fn commands_in_turn_share_a_guest_with_modules_files_and_environment_of_its_own() {
    if no_guests() {
        return;
    }
    let ground = Ground::new("shared");
    let script = "modprobe -n ip_vs_lc && grep -c ^ip_vs /proc/modules && echo one > \"$0\" && cat \"$0\"";
    let file = ground.scratch().join("file");
    let first = run(Path::new("/bin/sh"), &["-c", script, &file.display().to_string()], &ground.scratch());
    let first = first.expect("a guest");
    assert!(first.success() && first.text.ends_with("one\n"), "{first:?}");
    assert!(!file.exists(), "the guest wrote to the host's {}", file.display());
    // The same guest: the file is there. Its end is told by its exit status.
    let second = ground.sh(&format!("cat {}; exit 7", file.display()));
    assert_eq!(second, Output { status: Some(7), text: "one\n".into() });
    // A command that failed may have left something behind, so the next one gets another guest.
    assert!(ground.sh(&format!("! ls {}", file.display())).success(), "it is the same guest");
}

#[test]
fn a_guest_that_dies_is_told_and_the_next_command_gets_another() {
    if no_guests() {
        return;
    }
    let ground = Ground::new("dying");
    let died = ground.sh("echo last words; sync; echo o > /proc/sysrq-trigger; sleep 60");
    assert_eq!(died.status, None);
    assert!(died.text.contains("last words"), "{died:?}");
    assert!(ground.sh("true").success());
}

#[test]
fn a_guest_left_busy_by_a_killed_process_is_replaced() {
    if no_guests() {
        return;
    }
    let ground = Ground::new("busy");
    let mut slot = Slot::take(&ground.scratch()).expect("a slot");
    let file = ground.scratch().join("file").display().to_string();
    slot.run(Path::new("/bin/touch"), &[&file]).expect("a guest");
    slot.ask(Path::new("/bin/sleep"), &["1000"]).expect("a command");
    drop(slot);
    assert!(ground.sh(&format!("! ls {file}")).success(), "it is the same guest");
}

#[test]
fn two_users_at_a_time_have_two_guests() {
    if no_guests() {
        return;
    }
    let ground = Ground::new("two");
    let mut slots = [(); 2].map(|()| Slot::take(&ground.scratch()).expect("a slot"));
    let file = ground.scratch().join("mine");
    let script = format!("ls {0}; touch {0}", file.display());
    for slot in &mut slots {
        let output = slot.run(Path::new("/bin/sh"), &["-c", &script]).expect("a guest");
        assert!(output.text.contains("No such file"), "{output:?}");
    }
}

#[test]
fn a_failed_step_is_named_with_its_error_and_what_to_install() {
    if no_guests() {
        return;
    }
    let ground = Ground::new("failing");
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
        let line = ground.failure(&init);
        assert!(words.iter().all(|word| line.contains(word)), "not {words:?}: {line}");
        assert!(line.starts_with("user-mode Linux cannot boot: could not "), "{line}");
    }
}

#[test]
fn a_first_process_that_cannot_run_is_told_in_one_line() {
    if no_guests() {
        return;
    }
    let ground = Ground::new("mute");
    let line = ground.failure("#!/nowhere/sh\n");
    assert!(line.starts_with("user-mode Linux cannot boot: linux.uml ended with "), "{line}");
}
