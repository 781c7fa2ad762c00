//! Cluster IPs are addresses of this machine's, so they answer to a ping; in no other mode do they.

use super::words;
use crate::agent_lab::{AgentLab, patience};
use crate::mode_change::HEADER;
use crate::tool::Legacy;
use crate::{Outcome, Test};
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[("cluster_ips_answer_ping_in_this_mode_only", answered)];

/// Whether an address answers the client.
fn answers(world: &AgentLab, ip: &str) -> Result<(), String> {
    world.client_runs("ping", &["-n", "-c", "1", "-W", "2", ip]).map_err(|e| format!("{ip}: {}", words(e)))
}

fn answered(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    world.write("config.yaml", &format!("{HEADER}mode: ipvs\n"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    for ip in ["10.96.0.1", "fd96::1"] {
        eventually(patience(), || answers(world, ip))?;
    }
    // Not the address that a Service may get one day.
    for ip in ["10.96.0.2", "fd96::2"] {
        if answers(world, ip).is_ok() {
            return Err(format!("{ip} answers, and no Service has it").into());
        }
    }
    world.web_works()?;
    world.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    world.logged(&["the mode was switched", "from=\"ipvs\"", "to=\"iptables\""])?;
    world.without_ipvs(patience())?;
    for ip in ["10.96.0.1", "fd96::1"] {
        if answers(world, ip).is_ok() {
            return Err(format!("{ip} still answers").into());
        }
    }
    // Other addresses still answer.
    for ip in world.node_ips() {
        answers(world, &ip.to_string())?;
    }
    world.web_works()
}
