//! Traffic during a test: new connections at a steady rate, and connections that stay open.

use crate::agent_lab::{AgentLab, NODE_PORT, WEB};
use crate::{Outcome, ensure};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Load, Protocol, guest};
use std::net::SocketAddr;
use std::time::Duration;

/// New connections per second on each path. A guest takes several times as long for each.
fn rate() -> f64 {
    if guest::is_inside() { 5.0 } else { 50.0 }
}
/// The time limit for an answer, on a busy machine.
fn answer_timeout() -> Duration {
    Duration::from_secs(if guest::is_inside() { 10 } else { 2 })
}

/// Traffic from the client to a node port, and from a pod to a cluster IP, in both families.
pub(crate) struct Traffic {
    paths: Vec<(SocketAddr, Load, Conversation)>,
}

impl Traffic {
    /// Starts the traffic once all paths work.
    pub(crate) fn begin(lab: &AgentLab) -> Result<Traffic, Failed> {
        lab.web_works()?;
        let mut paths = Vec::new();
        for (node, web) in lab.node_ips().into_iter().zip(WEB) {
            let (node_port, cluster_ip) = (SocketAddr::new(node, NODE_PORT), SocketAddr::new(web, 80));
            lab.reaches(node_port, &["pod1a", "pod1b"])?;
            for (from, to) in [(lab.client(), node_port), (lab.pod("pod1a"), cluster_ip)] {
                let conversation = Conversation::begin(from, Protocol::Tcp, to, answer_timeout())
                    .map_err(|e| format!("an open connection to {to}: {e}"))?;
                paths.push((to, Load::start(from, to, rate()), conversation));
            }
        }
        Ok(Traffic { paths })
    }

    /// Checks that the open connections are answered.
    pub(crate) fn is_alive(&mut self, when: &str) -> Outcome {
        for (to, _, conversation) in &mut self.paths {
            let answer = conversation.ask("still there?");
            ensure(answer.is_ok(), || format!("{when}: the open connection to {to}: {answer:?}"))?;
        }
        Ok(())
    }

    /// Ends the traffic; no new connection may have failed, and the open ones must still be answered.
    pub(crate) fn end(mut self) -> Outcome {
        self.is_alive("at the end")?;
        for (to, load, _) in self.paths {
            let report = load.stop();
            ensure(report.is_clean(), || format!("new connections to {to}: {report}"))?;
        }
        Ok(())
    }
}
