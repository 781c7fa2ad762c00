//! Agents that stop, endpoints that change under load, rules that another process changes.

use super::{CLIENT, Case, LabNetwork, POD1, PODS, Script, Source, Step, Tamper, all, apply, tcp};
use crate::objects::Endpoint;
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "agents_restart_under_load_without_a_failed_connection", script: restart },
    Case { name: "rules_stay_in_force_without_agents", script: without_agents },
    Case { name: "endpoints_change_under_load_without_a_failed_connection", script: churn },
    Case { name: "flushed_ruleset_is_repaired", script: |net| tampered(net, Tamper::FlushEverything) },
    Case { name: "flushed_rules_are_repaired", script: |net| tampered(net, Tamper::FlushRules) },
    Case { name: "a_foreign_rule_is_removed", script: |net| tampered(net, Tamper::AddRule) },
    Case { name: "removed_objects_are_repaired", script: |net| tampered(net, Tamper::RemoveObjects) },
];

fn web(net: &LabNetwork) -> Vec<Step> {
    vec![
        apply(net.service("web", 1).node_port(30001)),
        apply(net.slice("web", &Endpoint::all(PODS))),
        tcp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))),
    ]
}

fn restart(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    let pause = || Step::Wait(Duration::from_millis(300));
    let meanwhile = vec![
        Step::KillAgents,
        pause(),
        Step::StartAgents,
        pause(),
        Step::StopAgents,
        pause(),
        Step::StartAgents,
        pause(),
    ];
    steps.push(Step::UnderLoad { from: CLIENT, to: net.at_cluster_ip(1), steps: meanwhile });
    steps.push(tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))));
    Script::steps(steps)
}

fn without_agents(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    steps.extend([
        tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))),
        Step::KillAgents,
        tcp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))),
        tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))),
        // Changes that were made without an agent are applied when it starts.
        apply(net.slice("web", &Endpoint::all(&["pod2b"]))),
        apply(net.service("new", 2)),
        apply(net.slice("new", &Endpoint::all(&["pod1b"]))),
        Step::StartAgents,
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod2b"], Source::Node(1))),
        tcp(CLIENT, net.at_cluster_ip(2), all(&["pod1b"], Source::Node(1))),
    ]);
    Script::steps(steps)
}

fn churn(net: &LabNetwork) -> Script {
    let mut steps = web(net);
    let mut meanwhile = Vec::new();
    for pods in [&["pod1a", "pod2a"][..], PODS, &["pod2b"], &["pod1b", "pod2b", "pod2a"], PODS] {
        meanwhile.push(apply(net.slice("web", &Endpoint::all(pods))));
        meanwhile.push(tcp(CLIENT, net.at_cluster_ip(1), all(pods, Source::Node(1))));
    }
    steps.push(Step::UnderLoad { from: CLIENT, to: net.at_cluster_ip(1), steps: meanwhile });
    Script::steps(steps)
}

fn tampered(net: &LabNetwork, tamper: Tamper) -> Script {
    let mut steps = web(net);
    steps.extend([
        Step::Tamper(1, tamper),
        tcp(CLIENT, net.at_cluster_ip(1), all(PODS, Source::Node(1))),
        tcp(POD1, net.at_cluster_ip(1), all(PODS, Source::Any)),
        // Later changes are applied too.
        apply(net.slice("web", &Endpoint::all(&["pod1b"]))),
        tcp(CLIENT, net.at_cluster_ip(1), all(&["pod1b"], Source::Node(1))),
    ]);
    Script::steps(steps)
}
