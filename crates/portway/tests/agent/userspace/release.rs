//! An agent and a relay of different releases. The tests contain the messages as text: the encoding of these four must
//! never change.

use super::{another_relay, has_ended, is_running, open, process, relay, start};
use crate::agent_lab::{AgentLab, WEB, wait_timeout};
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::eventually;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("an_agent_shuts_down_the_relay_of_an_earlier_release", agent_is_newer),
    ("a_relay_shuts_down_when_an_agent_of_a_later_release_requests_it", relay_is_older),
    ("an_agent_whose_relay_was_shut_down_starts_another", relay_shut_down),
    ("an_agent_of_an_earlier_release_changes_no_rules", superseded_agent),
];

/// The control socket of the node's relay.
fn control_socket(lab: &AgentLab) -> Result<PathBuf, Failed> {
    let namespace = lab.node().run(|| std::fs::metadata("/proc/thread-self/ns/net"))?.ino();
    Ok(Path::new("/run/portway").join(format!("relay-{namespace}.socket")))
}

/// Listens at the control socket in place of a relay.
fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    _ = std::fs::DirBuilder::new().mode(0o700).create("/run/portway");
    // Inode numbers of namespaces are reused, and a killed relay leaves its socket behind.
    _ = std::fs::remove_file(socket);
    UnixListener::bind(socket)
}

fn write(stream: &mut UnixStream, message: &str) -> std::io::Result<()> {
    stream.write_all(&u32::try_from(message.len()).map_err(std::io::Error::other)?.to_be_bytes())?;
    stream.write_all(message.as_bytes())
}

fn read(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut message)?;
    String::from_utf8(message).map_err(std::io::Error::other)
}

/// Answers an agent as a relay of an earlier release does, and returns the requests.
fn old_relay(listener: &UnixListener, socket: &Path) -> std::io::Result<Vec<String>> {
    let (mut agent, _) = listener.accept()?;
    agent.set_read_timeout(Some(wait_timeout()))?;
    let mut requests = vec![read(&mut agent)?];
    write(&mut agent, r#"{"welcome":{"version":"0.0.1/1","process":1}}"#)?;
    requests.push(read(&mut agent)?);
    std::fs::remove_file(socket)?;
    write(&mut agent, r#""done""#)?;
    Ok(requests)
}

fn agent_is_newer(lab: &mut AgentLab) -> Outcome {
    let socket = control_socket(lab)?;
    let listener = listen(&socket)?;
    let old = std::thread::spawn(move || old_relay(&listener, &socket));
    start(lab, &[])?;
    lab.logged(&["asked the relay of another release to shut down", "version=\"0.0.1/1\""])?;
    let requests = old.join().map_err(|_| "the thread of the old relay panicked")??;
    // The old relay accepts connections for another minute, since rules may still point to it, and then drains with its
    // own settings.
    let expected = [r#""hello""#, r#"{"leave":{"limit":null,"quiet":{"secs":60,"nanos":0}}}"#];
    ensure(requests == expected, || format!("the old relay received {requests:?}"))?;
    is_running(relay(lab)?)?;
    lab.web_works()
}

fn relay_is_older(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    let web = SocketAddr::new(WEB[0], 80);
    lab.web_works()?;
    let old = relay(lab)?;
    let mut conversation = open(lab, web)?;
    lab.kill()?;
    let socket = control_socket(lab)?;
    let mut later_release = UnixStream::connect(&socket)?;
    later_release.set_read_timeout(Some(Duration::from_secs(5)))?;
    write(&mut later_release, r#""hello""#)?;
    let answer = read(&mut later_release)?;
    let is_welcome = answer.starts_with(r#"{"welcome":{"version":""#)
        && answer.ends_with(&format!(r#","process":{old},"agents":0}}}}"#));
    ensure(is_welcome, || format!("hello was answered with {answer}"))?;
    write(&mut later_release, r#"{"leave":{"limit":null,"quiet":{"secs":3,"nanos":0}}}"#)?;
    let answer = read(&mut later_release)?;
    ensure(answer == r#""done""#, || format!("leave was answered with {answer}"))?;
    // The control socket is free for another relay. The old relay still accepts connections until rules point to the
    // new one.
    let free = || if socket.exists() { Err("the control socket still exists") } else { Ok(()) };
    eventually(wait_timeout(), free)?;
    lab.web_works()?;
    start(lab, &[])?;
    let new = relay(lab)?;
    ensure(new != old, || format!("the relay is still process {old}"))?;
    lab.web_works()?;
    let answer = conversation.ask("still there?");
    ensure(answer.is_ok(), || format!("the connection through the old relay: {answer:?}"))?;
    ensure(process(old).exists(), || "the old relay has ended, and its connection with it".to_owned())?;
    drop(conversation);
    has_ended(old)?;
    is_running(new)?;
    lab.web_works()
}

/// No connection is lost, and the agent starts another relay if the sender of `leave` does not.
fn relay_shut_down(lab: &mut AgentLab) -> Outcome {
    start(lab, &[])?;
    let mut traffic = crate::traffic::Traffic::begin(lab)?;
    let old = relay(lab)?;
    let mut later_release = UnixStream::connect(control_socket(lab)?)?;
    later_release.set_read_timeout(Some(Duration::from_secs(5)))?;
    write(&mut later_release, r#"{"leave":{"limit":null,"quiet":{"secs":3,"nanos":0}}}"#)?;
    let answer = read(&mut later_release)?;
    ensure(answer == r#""done""#, || format!("leave was answered with {answer}"))?;
    lab.logged(&["another process asked the relay to shut down"])?;
    traffic.is_alive("when the relay was asked to shut down")?;
    another_relay(lab, old)?;
    traffic.is_alive("with another relay")?;
    traffic.end()?;
    has_ended(old)
}

/// Answers agents as a relay of a later release that has an agent does, until its socket is removed.
fn later_relay(listener: &UnixListener, socket: &Path) {
    while let Ok((mut agent, _)) = listener.accept() {
        if !socket.exists() {
            return;
        }
        while read(&mut agent).is_ok_and(|request| request == r#""hello""#) {
            _ = write(&mut agent, r#"{"welcome":{"version":"99.0.0/1","process":1,"agents":1}}"#);
        }
    }
}

fn superseded_agent(lab: &mut AgentLab) -> Outcome {
    let socket = control_socket(lab)?;
    let listener = listen(&socket)?;
    let later = std::thread::spawn({
        let socket = socket.clone();
        move || later_relay(&listener, &socket)
    });
    start(lab, &[])?;
    lab.logged(&["an agent of a later release (99.0.0/1) has taken over"])?;
    let tables = lab.nft(&["list", "tables"])?;
    ensure(!tables.contains("portway"), || format!("the agent created tables:\n{tables}"))?;
    // The later release is removed, and this agent takes over again.
    let last = UnixStream::connect(&socket)?;
    std::fs::remove_file(&socket)?;
    _ = last.shutdown(std::net::Shutdown::Both);
    drop(last);
    lab.web_works()?;
    is_running(relay(lab)?)?;
    drop(later);
    Ok(())
}
