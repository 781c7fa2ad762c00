//! In the ipvs mode cluster IPs are addresses of the node, so they answer ping; in other modes they do not.

use super::message;
use crate::agent_lab::{AgentLab, wait_timeout};
use crate::mode_change::HEADER;
use crate::tool::Legacy;
use crate::{Outcome, Test};
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[("cluster_ips_answer_ping_in_this_mode_only", answered)];

/// Whether an address answers the client.
fn answers(lab: &AgentLab, ip: &str) -> Result<(), String> {
    lab.client_runs("ping", &["-n", "-c", "1", "-W", "2", ip]).map_err(|e| format!("{ip}: {}", message(e)))
}

fn answered(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    lab.write("config.yaml", &format!("{HEADER}mode: ipvs\n"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    for ip in ["10.96.0.1", "fd96::1"] {
        eventually(wait_timeout(), || answers(lab, ip))?;
    }
    // An address that no Service has does not answer.
    for ip in ["10.96.0.2", "fd96::2"] {
        if answers(lab, ip).is_ok() {
            return Err(format!("{ip} answers though no Service has it").into());
        }
    }
    lab.web_works()?;
    lab.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    lab.logged(&["the mode was switched", "from=\"ipvs\"", "to=\"iptables\""])?;
    lab.without_ipvs(wait_timeout())?;
    for ip in ["10.96.0.1", "fd96::1"] {
        if answers(lab, ip).is_ok() {
            return Err(format!("{ip} still answers").into());
        }
    }
    // Other addresses still answer.
    for ip in lab.node_ips() {
        answers(lab, &ip.to_string())?;
    }
    lab.web_works()
}
