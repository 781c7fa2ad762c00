//! Traffic during a test: new connections at a steady rate, and some that stay open.

use crate::agent_lab::{AgentLab, NODE_PORT, WEB};
use crate::{Outcome, ensure};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Load, Protocol, guest};
use std::net::SocketAddr;
use std::time::Duration;

/// New connections a second, on each way; as many as a guest, where they take several times as long, can bear.
fn rate() -> f64 {
    if guest::is_inside() { 5.0 } else { 50.0 }
}
/// How long an answer may take on a busy machine.
fn answer() -> Duration {
    Duration::from_secs(if guest::is_inside() { 10 } else { 2 })
}

/// From the client to a node port, and from a pod to a cluster IP, in both families.
pub(crate) struct Traffic {
    ways: Vec<(SocketAddr, Load, Conversation)>,
}

impl Traffic {
    /// Begins, once all of it works.
    pub(crate) fn begin(world: &AgentLab) -> Result<Traffic, Failed> {
        world.web_works()?;
        let mut ways = Vec::new();
        for (node, web) in world.node_ips().into_iter().zip(WEB) {
            let (node_port, cluster_ip) = (SocketAddr::new(node, NODE_PORT), SocketAddr::new(web, 80));
            world.reaches(node_port, &["pod1a", "pod1b"])?;
            for (from, to) in [(world.client(), node_port), (world.pod("pod1a"), cluster_ip)] {
                let conversation = Conversation::begin(from, Protocol::Tcp, to, answer())
                    .map_err(|e| format!("an open connection to {to}: {e}"))?;
                ways.push((to, Load::start(from, to, rate()), conversation));
            }
        }
        Ok(Traffic { ways })
    }

    /// The open connections are open.
    pub(crate) fn is_alive(&mut self, when: &str) -> Outcome {
        for (to, _, conversation) in &mut self.ways {
            let answer = conversation.ask("still there?");
            ensure(answer.is_ok(), || format!("{when}: the open connection to {to}: {answer:?}"))?;
        }
        Ok(())
    }

    /// Ends: no new connection failed, and the open ones are open.
    pub(crate) fn end(mut self) -> Outcome {
        self.is_alive("at the end")?;
        for (to, load, _) in self.ways {
            let report = load.stop();
            ensure(report.is_clean(), || format!("new connections to {to}: {report}"))?;
        }
        Ok(())
    }
}
