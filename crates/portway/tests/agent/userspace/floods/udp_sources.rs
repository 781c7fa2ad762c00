//! Datagrams from more sources than the relay may have sessions.

use super::forger::{Forger, forged_source};
use super::{ANSWER_TIMEOUT, RelayBaseline, during, served, v4};
use crate::agent_lab::{AgentLab, wait_timeout};
use crate::{Outcome, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Failure, Probe, Protocol, eventually};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// The number of sources, each with another port.
const SOURCES: u16 = 40_000;
/// The limit on sessions.
const SESSIONS: usize = 1000;

pub(super) fn udp_sources(lab: &mut AgentLab) -> Outcome {
    let dns = objects::service("dns", "10.96.0.53", "");
    let port = "name: udp\n    port: 53\n    protocol: UDP";
    lab.apply("dns.yaml", &dns.replace("port: 80\n    protocol: TCP", port));
    lab.apply(
        "dns-slice.yaml",
        &objects::slice("dns", "dns", &["pod1a", "pod1b"].map(|p| lab.pod_ips(p)[0])),
    );
    let baseline = RelayBaseline::start(lab, &[&format!("--userspace-max-udp-sessions={SESSIONS}")])?;
    let to = SocketAddr::new("10.96.0.53".parse()?, 53);
    let mut active = UdpClient::begin(lab, to)?;
    let mut idle = UdpClient::begin(lab, to)?;
    active.becomes_a_stream()?;
    idle.becomes_a_stream()?;
    let forger = Forger::new(lab.client())?;
    let target = v4(to.ip(), to.port())?;
    let most = baseline.sockets + SESSIONS;
    let mut seen = 0;
    during(
        || (0..SOURCES).try_for_each(|n| forger.datagram(forged_source(n), target, b"flood")),
        || {
            active.is_answered("during the flood")?;
            seen = seen.max(baseline.relay.sockets()?);
            ensure(seen <= most, || format!("the relay has {seen} sockets, more than {most}"))?;
            Ok(baseline.check_memory()?)
        },
    )??;
    // This answer arrives after the relay has handled all datagrams of the flood.
    active.is_answered("after the flood")?;
    idle.is_answered("after the flood")?;
    let outcome = Probe::udp(lab.client(), to).count(100).timeout(ANSWER_TIMEOUT).run();
    ensure(outcome.all_answered(), || format!("new clients: {outcome}"))?;
    let sockets = baseline.relay.sockets()?;
    ensure(sockets <= most, || format!("the relay has {sockets} sockets, more than {most}"))?;
    let series = r#"portway_userspace_connections_total{namespace="default",service="dns",port="udp",protocol="UDP",ip_family="IPv4"}"#;
    lab.metric(series, |total| total > 3.0 * SESSIONS as f64)?;
    served(lab)?;
    Ok(baseline.check_memory()?)
}

/// A client that sends UDP datagrams again and again.
struct UdpClient {
    conversation: Conversation,
    began: Instant,
    /// The source address of its session, as the pod sees it.
    session: SocketAddr,
}

impl UdpClient {
    /// After this time conntrack treats a flow with replies as a stream.
    const STREAM_AFTER: Duration = Duration::from_secs(3);
    /// After this time without an answer the client sends again.
    const RESEND_AFTER: Duration = Duration::from_millis(250);

    fn begin(lab: &AgentLab, to: SocketAddr) -> Result<UdpClient, Failed> {
        let begin = || {
            let mut conversation =
                Conversation::begin(lab.client(), Protocol::Udp, to, UdpClient::RESEND_AFTER)?;
            Ok::<_, Failure>((conversation.ask("hello")?.source, conversation))
        };
        let (session, conversation) = eventually(wait_timeout(), begin)?;
        Ok(UdpClient { conversation, began: Instant::now(), session })
    }

    /// Sends datagrams until conntrack treats the flow as a stream.
    fn becomes_a_stream(&mut self) -> Outcome {
        while self.began.elapsed() < UdpClient::STREAM_AFTER {
            self.is_answered("before the flood")?;
            thread::sleep(Duration::from_millis(10));
        }
        self.is_answered("before the flood")
    }

    /// Checks that the client is answered through the same session. Full queues drop datagrams, so it sends until an
    /// answer comes.
    fn is_answered(&mut self, when: &str) -> Outcome {
        let answer = eventually(wait_timeout(), || self.conversation.ask(when))?;
        let (is, was) = (answer.source, self.session);
        ensure(is == was, || format!("{when}: the session was {was} and is {is}"))
    }
}
