//! Datagrams from more sources than there may be sessions.

use super::forger::{Forger, stranger};
use super::{ANSWER, Scene, during, served, v4};
use crate::world::{World, patience};
use crate::{Outcome, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Failure, Probe, Protocol, eventually};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Sources of datagrams, each with a port of its own.
const STRANGERS: u16 = 40_000;
/// Sessions that there may be.
const SESSIONS: usize = 1000;

pub(super) fn strangers(world: &mut World) -> Outcome {
    let dns = objects::service("dns", "10.96.0.53", "");
    let port = "name: udp\n    port: 53\n    protocol: UDP";
    world.apply("dns.yaml", &dns.replace("port: 80\n    protocol: TCP", port));
    world.apply(
        "dns-slice.yaml",
        &objects::slice("dns", "dns", &["pod1a", "pod1b"].map(|p| world.pod_ips(p)[0])),
    );
    let scene = Scene::begin(world, &[&format!("--userspace-max-udp-sessions={SESSIONS}")])?;
    let to = SocketAddr::new("10.96.0.53".parse()?, 53);
    let mut talker = Talker::begin(world, to)?;
    let mut quiet = Talker::begin(world, to)?;
    talker.talks_for_a_while()?;
    quiet.talks_for_a_while()?;
    let forger = Forger::new(world.client())?;
    let target = v4(to.ip(), to.port())?;
    let most = scene.sockets + SESSIONS;
    let mut seen = 0;
    during(
        || (0..STRANGERS).try_for_each(|n| forger.datagram(stranger(n), target, b"flood")),
        || {
            talker.is_answered("during the flood")?;
            seen = seen.max(scene.carrier.sockets()?);
            ensure(seen <= most, || format!("there are {seen} sockets, {most} would be all"))?;
            Ok(scene.is_slim()?)
        },
    )??;
    // What came before it has been dealt with when it is answered.
    talker.is_answered("after the flood")?;
    quiet.is_answered("after the flood")?;
    let outcome = Probe::udp(world.client(), to).count(100).timeout(ANSWER).run();
    ensure(outcome.all_answered(), || format!("new clients: {outcome}"))?;
    let sockets = scene.carrier.sockets()?;
    ensure(sockets <= most, || format!("there are {sockets} sockets, {most} would be all"))?;
    let series = r#"portway_userspace_connections_total{namespace="default",service="dns",port="udp",protocol="UDP",ip_family="IPv4"}"#;
    world.metric(series, |total| total > 3.0 * SESSIONS as f64)?;
    served(world)?;
    Ok(scene.is_slim()?)
}

/// A client that asks by UDP again and again.
struct Talker {
    conversation: Conversation,
    began: Instant,
    /// Its session, as the pod knows it.
    session: SocketAddr,
}

impl Talker {
    /// For so long it must have gone on to be one that lasts.
    const LASTING: Duration = Duration::from_secs(3);
    /// After so long without an answer it asks again.
    const AGAIN: Duration = Duration::from_millis(250);

    fn begin(world: &World, to: SocketAddr) -> Result<Talker, Failed> {
        let begin = || {
            let mut conversation = Conversation::begin(world.client(), Protocol::Udp, to, Talker::AGAIN)?;
            Ok::<_, Failure>((conversation.ask("hello")?.source, conversation))
        };
        let (session, conversation) = eventually(patience(), begin)?;
        Ok(Talker { conversation, began: Instant::now(), session })
    }

    fn talks_for_a_while(&mut self) -> Outcome {
        while self.began.elapsed() < Talker::LASTING {
            self.is_answered("before the flood")?;
            thread::sleep(Duration::from_millis(10));
        }
        self.is_answered("before the flood")
    }

    /// It is answered, by the same session. It asks again if it is not, as who speaks UDP does: what is full may drop.
    fn is_answered(&mut self, when: &str) -> Outcome {
        let answer = eventually(patience(), || self.conversation.ask(when))?;
        let (is, was) = (answer.source, self.session);
        ensure(is == was, || format!("{when}: the session was {was} and is {is}"))
    }
}
