//! A switch of the mode under load, there and back.
//!
//! Portway switches when its configuration file changes. kube-proxy cannot switch while it runs: it is stopped and
//! started again, as a rolling update of its DaemonSet does.

use super::Contender;
use super::binary::Peer;
use super::comparison::{Comparison, Metric};
use super::disruption::Disruption;
use super::process_tree::wait_until_idle;
use super::source::Origin;
use super::testbed::{Client, Testbed};
use super::turn::{START_TIMEOUT, wait_for_connection};
use crate::Options;
use crate::cluster::Mode;
use portway_lab::Agent;
use std::time::Duration;

/// Measures a switch from the first mode to the second, and one back.
pub(super) fn run(
    options: &Options,
    (peer, origin): (&Peer, &Origin),
    [first, second]: [Mode; 2],
    contender: Contender,
    comparison: &mut Comparison,
) -> Result<(), String> {
    // The variant of iptables is that of the testbed.
    let testbed = Testbed::build(options, peer, origin, second)?;
    let mut agent = testbed.start(contender, first)?;
    wait_for_connection(&testbed, &agent)?;
    for (client, from, to) in [(Client::Load, first, second), (Client::LoadBack, second, first)] {
        wait_until_idle(agent.id(), START_TIMEOUT)?;
        let length = Duration::from_secs(options.window_seconds);
        let (disruption, switched) =
            Disruption::observe(testbed.client(client), testbed.vip, length, || {
                switch(&testbed, contender, agent, to)
            })?;
        agent = switched;
        let mode = testbed.mode_in_force();
        if mode.as_deref() != Some(to.flag()) {
            let name = contender.name();
            return Err(format!(
                "{name} is not in mode {} {length:?} after the switch, but in {mode:?}\n{}",
                to.flag(),
                agent.log()
            ));
        }
        let group = format!("switch from {} to {}", from.name(), to.name());
        comparison.add(&group, contender, Metric::Failed, disruption.failed as f64);
        comparison.add(&group, contender, Metric::Repaired, disruption.seconds);
        comparison.note_early(&group, contender, disruption.early);
    }
    Ok(())
}

fn switch(testbed: &Testbed, contender: Contender, agent: Agent, to: Mode) -> Result<Agent, String> {
    match contender {
        Contender::Portway => {
            testbed.configure(to)?;
            Ok(agent)
        }
        Contender::KubeProxy => {
            agent.terminate().map_err(|e| e.to_string())?;
            testbed.start(contender, to)
        }
    }
}
