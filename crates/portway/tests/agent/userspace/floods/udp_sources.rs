//! Datagrams from more sources than sessions are allowed.

use super::forger::{Forger, forged_source};
use super::{ANSWER, Scene, during, served, v4};
use crate::agent_lab::{AgentLab, patience};
use crate::{Outcome, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Failure, Probe, Protocol, eventually};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Sources of datagrams, each with a port of its own.
const SOURCES: u16 = 40_000;
/// The limit on sessions.
const SESSIONS: usize = 1000;

pub(super) fn udp_sources(world: &mut AgentLab) -> Outcome {
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
        || (0..SOURCES).try_for_each(|n| forger.datagram(forged_source(n), target, b"flood")),
        || {
            talker.is_answered("during the flood")?;
            seen = seen.max(scene.relay.sockets()?);
            ensure(seen <= most, || format!("there are {seen} sockets, {most} would be all"))?;
            Ok(scene.is_slim()?)
        },
    )??;
    // Its answer comes after all datagrams of the flood were handled.
    talker.is_answered("after the flood")?;
    quiet.is_answered("after the flood")?;
    let outcome = Probe::udp(world.client(), to).count(100).timeout(ANSWER).run();
    ensure(outcome.all_answered(), || format!("new clients: {outcome}"))?;
    let sockets = scene.relay.sockets()?;
    ensure(sockets <= most, || format!("there are {sockets} sockets, {most} would be all"))?;
    let series = r#"portway_userspace_connections_total{namespace="default",service="dns",port="udp",protocol="UDP",ip_family="IPv4"}"#;
    world.metric(series, |total| total > 3.0 * SESSIONS as f64)?;
    served(world)?;
    Ok(scene.is_slim()?)
}

/// A client that sends UDP datagrams again and again.
struct Talker {
    conversation: Conversation,
    began: Instant,
    /// The source address of its session, as the pod sees it.
    session: SocketAddr,
}

impl Talker {
    /// After this time the kernel takes its flow for a stream.
    const STREAM_AFTER: Duration = Duration::from_secs(3);
    /// After this time without an answer it sends again.
    const RESEND_AFTER: Duration = Duration::from_millis(250);

    fn begin(world: &AgentLab, to: SocketAddr) -> Result<Talker, Failed> {
        let begin = || {
            let mut conversation =
                Conversation::begin(world.client(), Protocol::Udp, to, Talker::RESEND_AFTER)?;
            Ok::<_, Failure>((conversation.ask("hello")?.source, conversation))
        };
        let (session, conversation) = eventually(patience(), begin)?;
        Ok(Talker { conversation, began: Instant::now(), session })
    }

    fn talks_for_a_while(&mut self) -> Outcome {
        while self.began.elapsed() < Talker::STREAM_AFTER {
            self.is_answered("before the flood")?;
            thread::sleep(Duration::from_millis(10));
        }
        self.is_answered("before the flood")
    }

    /// Checks that it is answered through the same session. Full queues drop datagrams, so it sends again without an answer.
    fn is_answered(&mut self, when: &str) -> Outcome {
        let answer = eventually(patience(), || self.conversation.ask(when))?;
        let (is, was) = (answer.source, self.session);
        ensure(is == was, || format!("{when}: the session was {was} and is {is}"))
    }
}
