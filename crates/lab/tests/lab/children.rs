//! Child processes of the tests: this same program, which runs in the role that an environment variable names.

use portway_lab::{Layout, Port, Privilege, Probe, enter};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The environment variable with the role.
const ROLE: &str = "PORTWAY_LAB_TEST_ROLE";
/// The line that a child prints when it is ready for its parent to continue.
const READY: &str = "ready";
/// The user and group of an ordinary user.
const NOBODY: u32 = 65534;

/// The role that this process was started in, if any.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A command that starts this program in a role. Not by its path, which an ordinary user may have no permission to
/// read.
pub(crate) fn command(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The same, as an ordinary user.
pub(crate) fn command_as_nobody(role: &str) -> Command {
    let mut command = command(role);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    command
}

/// A command that only sleeps.
pub(crate) fn sleeper() -> Command {
    let mut command = command("sleeper");
    command.stdout(Stdio::null());
    command
}

/// Reads the output of a child up to the line `ready`, and returns the lines before it.
pub(crate) fn wait_until_ready(child: &mut Child) -> String {
    use std::io::BufRead;
    let mut output = String::new();
    for line in std::io::BufReader::new(child.stdout.as_mut().unwrap()).lines() {
        let line = line.unwrap();
        if line == READY {
            return output;
        }
        output.push_str(&line);
        output.push('\n');
    }
    panic!("the child ended before it was ready: {output}");
}

/// Whether a process runs.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Runs in a role.
pub(crate) fn run(role: &str) {
    match role {
        "killed" => killed(),
        "sleeper" => sleep_until_killed(),
        "ordinary" => ordinary(),
        "forbidden" => forbidden(),
        "threaded" => threaded(),
        "agent" => agent(),
        other => panic!("no role {other}"),
    }
}

fn print_line(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// Sleeps for a minute after the parent has closed the pipe; the process is killed before.
fn sleep_until_killed() {
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    std::thread::sleep(Duration::from_secs(60));
}

/// Builds a lab with processes in it, and waits to be killed.
fn killed() {
    let privilege = enter().unwrap();
    let lab = Layout { nodes: 1, pods_per_node: 1, clients: 0 }.build().unwrap();
    let sleeper = lab.node(1).spawn(sleeper()).unwrap();
    print_line(&std::process::id().to_string());
    print_line(&sleeper.id().to_string());
    if privilege == Privilege::Root {
        // A process without the owner in its environment, which can be found only by its namespace.
        print_line(&lab.node(1).namespace().run(|| self::sleeper().spawn().unwrap().id()).to_string());
    }
    print_line(READY);
    sleep_until_killed();
}

/// Builds and uses a lab as an ordinary user.
fn ordinary() {
    print_line(&format!("{:?}", enter().unwrap()));
    let lab = Layout { nodes: 2, pods_per_node: 1, clients: 1 }.build().unwrap();
    lab.pod("pod2a").serve(&[Port::Tcp(80), Port::Udp(80)]).unwrap();
    for to in lab.pod("pod2a").sockets(80) {
        for probe in [Probe::tcp(lab.pod("pod1a"), to), Probe::udp(lab.client(1), to)] {
            let outcome = probe.count(5).run();
            assert!(outcome.all_answered(), "{to}: {outcome}");
        }
    }
    assert!(lab.node(1).namespace().path().exists());
    drop(lab);
    print_line(READY);
}

/// Enters a lab where user namespaces are forbidden: in a user namespace in which this function forbids them.
fn forbidden() {
    portway_netlink::namespace::unshare_user().unwrap();
    std::fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
    print_line(&enter().unwrap_err().to_string());
    print_line(READY);
}

/// Enters a lab while the process has two threads.
fn threaded() {
    portway_netlink::namespace::unshare_user().unwrap();
    let thread = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(200)));
    print_line(&enter().unwrap_err().to_string());
    thread.join().unwrap();
    print_line(READY);
}

/// A process that writes to both outputs and then sleeps; a signal ends it.
fn agent() {
    print_line("starting");
    eprintln!("a line on stderr");
    print_line("network namespace seen");
    print_line(READY);
    std::thread::sleep(Duration::from_secs(60));
}
