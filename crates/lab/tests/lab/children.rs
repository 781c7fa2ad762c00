//! The roles in which this program starts itself.

use portway_lab::{Layout, Port, Privilege, Probe, enter};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable that carries the role.
const ROLE: &str = "PORTWAY_LAB_TEST_ROLE";
/// What a child says when it has done what its parent waits for.
const READY: &str = "ready";
/// An ordinary user.
const NOBODY: u32 = 65534;

/// The role that this process was started in, if any.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A command that starts this program in a role. Not by its path: an ordinary user may not be let through to that.
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

/// A command that does nothing, for long.
pub(crate) fn sleeper() -> Command {
    let mut command = command("sleeper");
    command.stdout(Stdio::null());
    command
}

/// Reads what a child says up to and including `ready`.
pub(crate) fn wait_until_ready(child: &mut Child) -> String {
    use std::io::BufRead;
    let mut said = String::new();
    for line in std::io::BufReader::new(child.stdout.as_mut().unwrap()).lines() {
        let line = line.unwrap();
        if line == READY {
            return said;
        }
        said.push_str(&line);
        said.push('\n');
    }
    panic!("the child ended before it was ready: {said}");
}

/// Whether a process lives.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Plays a role to its end.
pub(crate) fn play(role: &str) {
    match role {
        "doomed" => doomed(),
        "sleeper" => wait_for_the_end(),
        "ordinary" => ordinary(),
        "forbidden" => forbidden(),
        "threaded" => threaded(),
        "agent" => agent(),
        other => panic!("no role {other}"),
    }
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// Returns when the parent is gone.
fn wait_for_the_end() {
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    std::thread::sleep(Duration::from_secs(60));
}

/// Builds a lab with processes in it, and waits to be killed.
fn doomed() {
    let privilege = enter().unwrap();
    let lab = Layout { nodes: 1, pods_per_node: 1, clients: 0 }.build().unwrap();
    let sleeper = lab.node(1).spawn(sleeper()).unwrap();
    say(&std::process::id().to_string());
    say(&sleeper.id().to_string());
    if privilege == Privilege::Root {
        // One that does not carry its owner's name, and can be found by its namespace only.
        say(&lab.node(1).namespace().run(|| self::sleeper().spawn().unwrap().id()).to_string());
    }
    say(READY);
    wait_for_the_end();
}

/// Does as an ordinary user what root can do.
fn ordinary() {
    say(&format!("{:?}", enter().unwrap()));
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
    say(READY);
}

/// Enters where user namespaces are forbidden: in one of our own, in which we forbid them.
fn forbidden() {
    portway_netlink::namespace::unshare_user().unwrap();
    std::fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
    say(&enter().unwrap_err().to_string());
    say(READY);
}

/// Enters too late.
fn threaded() {
    portway_netlink::namespace::unshare_user().unwrap();
    let thread = std::thread::spawn(|| std::thread::sleep(Duration::from_millis(200)));
    say(&enter().unwrap_err().to_string());
    thread.join().unwrap();
    say(READY);
}

/// Something that runs, talks, and ends when asked to by its input: signals end it the hard way.
fn agent() {
    say("starting");
    eprintln!("a word on stderr");
    say("network namespace seen");
    say(READY);
    std::thread::sleep(Duration::from_secs(60));
}
