//! An agent and a carrier of different releases. What they say to each other is written out here: it has to stay
//! what it is, whatever else changes.

use super::{another, carrier, is_gone, is_there, open, process, start};
use crate::world::{WEB, World, patience};
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
    ("a_carrier_of_another_release_is_sent_home", agent_is_newer),
    ("an_agent_of_another_release_sends_the_carrier_home", carrier_is_older),
    ("so_it_is_while_its_own_agent_runs", both_run),
    ("an_agent_of_an_earlier_release_stands_back", superseded),
];

/// Where the carrier of the node is found.
fn place(world: &World) -> Result<PathBuf, Failed> {
    let namespace = world.node().run(|| std::fs::metadata("/proc/thread-self/ns/net"))?.ino();
    Ok(Path::new("/run/portway").join(format!("carrier-{namespace}.socket")))
}

/// Listens where the carrier would.
fn listen(place: &Path) -> std::io::Result<UnixListener> {
    _ = std::fs::DirBuilder::new().mode(0o700).create("/run/portway");
    // Numbers of namespaces come again, and a carrier that was killed leaves its socket behind.
    _ = std::fs::remove_file(place);
    UnixListener::bind(place)
}

fn say(stream: &mut UnixStream, message: &str) -> std::io::Result<()> {
    stream.write_all(&u32::try_from(message.len()).map_err(std::io::Error::other)?.to_be_bytes())?;
    stream.write_all(message.as_bytes())
}

fn hear(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut message)?;
    String::from_utf8(message).map_err(std::io::Error::other)
}

/// Answers an agent as a carrier of an earlier release does, and comes back with what it was told.
fn old_carrier(listener: &UnixListener, place: &Path) -> std::io::Result<Vec<String>> {
    let (mut agent, _) = listener.accept()?;
    agent.set_read_timeout(Some(patience()))?;
    let mut told = vec![hear(&mut agent)?];
    say(&mut agent, r#"{"welcome":{"version":"0.0.1/1","process":1}}"#)?;
    told.push(hear(&mut agent)?);
    std::fs::remove_file(place)?;
    say(&mut agent, r#""done""#)?;
    Ok(told)
}

fn agent_is_newer(world: &mut World) -> Outcome {
    let place = place(world)?;
    let listener = listen(&place)?;
    let old = std::thread::spawn(move || old_carrier(&listener, &place));
    start(world, &[])?;
    world.logged(&["another release carries connections", "version=\"0.0.1/1\""])?;
    let told = old.join().map_err(|_| "the old carrier")??;
    // It goes on for a minute with what is still led to it, and then as long as its own settings let it.
    let expected = [r#""hello""#, r#"{"leave":{"limit":null,"quiet":{"secs":60,"nanos":0}}}"#];
    ensure(told == expected, || format!("an earlier release was told {told:?}"))?;
    is_there(carrier(world)?)?;
    world.web_works()
}

fn carrier_is_older(world: &mut World) -> Outcome {
    start(world, &[])?;
    let web = SocketAddr::new(WEB[0], 80);
    world.web_works()?;
    let old = carrier(world)?;
    let mut conversation = open(world, web)?;
    world.kill()?;
    let place = place(world)?;
    let mut later_release = UnixStream::connect(&place)?;
    later_release.set_read_timeout(Some(Duration::from_secs(5)))?;
    say(&mut later_release, r#""hello""#)?;
    let answer = hear(&mut later_release)?;
    let is_named = answer.starts_with(r#"{"welcome":{"version":""#)
        && answer.ends_with(&format!(r#","process":{old},"agents":0}}}}"#));
    ensure(is_named, || format!("hello was answered with {answer}"))?;
    say(&mut later_release, r#"{"leave":{"limit":null,"quiet":{"secs":3,"nanos":0}}}"#)?;
    let answer = hear(&mut later_release)?;
    ensure(answer == r#""done""#, || format!("leave was answered with {answer}"))?;
    // The place is free for another carrier, and until rules lead there the old one goes on.
    let free = || if place.exists() { Err("the place is taken") } else { Ok(()) };
    eventually(patience(), free)?;
    world.web_works()?;
    start(world, &[])?;
    let new = carrier(world)?;
    ensure(new != old, || format!("process {old} goes on"))?;
    world.web_works()?;
    let answer = conversation.ask("still there?");
    ensure(answer.is_ok(), || format!("the connection through the old one: {answer:?}"))?;
    ensure(process(old).exists(), || "the old one is gone, and its connection with it".to_owned())?;
    drop(conversation);
    is_gone(old)?;
    is_there(new)?;
    world.web_works()
}

/// The agent whose carrier is sent home loses no connection, and has another one soon if nobody else has.
fn both_run(world: &mut World) -> Outcome {
    start(world, &[])?;
    let mut traffic = crate::traffic::Traffic::begin(world)?;
    let old = carrier(world)?;
    let mut later_release = UnixStream::connect(place(world)?)?;
    later_release.set_read_timeout(Some(Duration::from_secs(5)))?;
    say(&mut later_release, r#"{"leave":{"limit":null,"quiet":{"secs":3,"nanos":0}}}"#)?;
    let answer = hear(&mut later_release)?;
    ensure(answer == r#""done""#, || format!("leave was answered with {answer}"))?;
    world.logged(&["somebody has sent the process that carries connections home"])?;
    traffic.is_alive("when it was sent home")?;
    another(world, old)?;
    traffic.is_alive("with another carrier")?;
    traffic.end()?;
    is_gone(old)
}

/// Answers agents as the carrier of a later release does that has an agent of its own, until it is gone.
fn later_carrier(listener: &UnixListener, place: &Path) {
    while let Ok((mut agent, _)) = listener.accept() {
        if !place.exists() {
            return;
        }
        while hear(&mut agent).is_ok_and(|said| said == r#""hello""#) {
            _ = say(&mut agent, r#"{"welcome":{"version":"99.0.0/1","process":1,"agents":1}}"#);
        }
    }
}

fn superseded(world: &mut World) -> Outcome {
    let place = place(world)?;
    let listener = listen(&place)?;
    let later = std::thread::spawn({
        let place = place.clone();
        move || later_carrier(&listener, &place)
    });
    start(world, &[])?;
    world.logged(&["an agent of a later release (99.0.0/1) has taken over"])?;
    let tables = world.nft(&["list", "tables"])?;
    ensure(!tables.contains("portway"), || format!("it has rules:\n{tables}"))?;
    // The other one leaves, and it is needed again.
    let last = UnixStream::connect(&place)?;
    std::fs::remove_file(&place)?;
    _ = last.shutdown(std::net::Shutdown::Both);
    drop(last);
    world.web_works()?;
    is_there(carrier(world)?)?;
    drop(later);
    Ok(())
}
