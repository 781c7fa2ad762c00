//! The configuration file that kubeadm writes, unchanged, serves what kube-proxy serves with it.

use crate::agent_lab::{AgentLab, NODE_PORT, WEB};
use crate::forward_policy::set_policy;
use crate::localhost::{answered, localhost};
use crate::tool::Nft;
use crate::{Outcome, Test};
use std::net::SocketAddr;

pub(crate) const TESTS: &[Test] =
    &[("the_file_of_kubeadm_serves_on_a_node_with_two_addresses_and_a_drop_policy", unchanged)];

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
const FILE: &str = include_str!("../../../proxy/src/config/tests/kubeadm.yaml");
const SECOND_ADDRESS: &str = "172.31.99.9";

fn unchanged(lab: &mut AgentLab) -> Outcome {
    set_policy(lab, Nft, "DROP")?;
    lab.add_address(&format!("{SECOND_ADDRESS}/24"))?;
    let gateway = lab.node_ips()[0].to_string();
    lab.client_runs("ip", &["route", "add", &format!("{SECOND_ADDRESS}/32"), "via", &gateway])?;
    lab.write("config.yaml", &format!("{HEADER}{FILE}"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    lab.logged(&["no mode is configured"])?;
    // The cluster IP from outside, and node ports at every address, are masqueraded, so they are accepted. Traffic that
    // keeps its source is the network plugin's business, with kube-proxy too.
    lab.reaches(SocketAddr::new(WEB[0], 80), &["pod1a", "pod1b"])?;
    for ip in [lab.node_ips()[0], lab.node_ips()[1], SECOND_ADDRESS.parse()?] {
        lab.reaches(SocketAddr::new(ip, NODE_PORT), &["pod1a", "pod1b"])?;
    }
    answered(lab, localhost(NODE_PORT))
}
