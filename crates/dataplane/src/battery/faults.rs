//! What must hold when things go wrong.

use super::{CLIENT, Case, Ep, Net, POD1, PODS, Script, Source, Step, Svc, Tamper, all, apply, tcp};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    Case { name: "agents_restart_under_load_without_a_failed_connection", script: restart },
    Case { name: "agents_are_gone_and_rules_stay", script: gone },
    Case { name: "endpoints_change_under_load_without_a_failed_connection", script: churn },
    Case { name: "everything_flushed_is_repaired", script: |net| tampered(net, Tamper::FlushEverything) },
    Case { name: "rules_flushed_are_repaired", script: |net| tampered(net, Tamper::FlushRules) },
    Case { name: "a_foreign_rule_is_removed", script: |net| tampered(net, Tamper::AddRule) },
    Case { name: "a_missing_part_is_repaired", script: |net| tampered(net, Tamper::RemovePart) },
];

fn web(net: &Net) -> Vec<Step> {
    vec![
        apply(Svc::new(net, "web", 1).node_port(30001)),
        apply(net.slice("web", &Ep::all(PODS))),
        tcp(CLIENT, net.service(1), all(PODS, Source::Node(1))),
    ]
}

fn restart(net: &Net) -> Script {
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
    steps.push(Step::UnderLoad { from: CLIENT, to: net.service(1), steps: meanwhile });
    steps.push(tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))));
    Script::steps(steps)
}

fn gone(net: &Net) -> Script {
    let mut steps = web(net);
    steps.extend([
        tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))),
        Step::KillAgents,
        tcp(CLIENT, net.service(1), all(PODS, Source::Node(1))),
        tcp(CLIENT, net.node_port(2, 30001), all(PODS, Source::Node(2))),
        // What changed meanwhile is made up for.
        apply(net.slice("web", &Ep::all(&["pod2b"]))),
        apply(Svc::new(net, "new", 2)),
        apply(net.slice("new", &Ep::all(&["pod1b"]))),
        Step::StartAgents,
        tcp(CLIENT, net.service(1), all(&["pod2b"], Source::Node(1))),
        tcp(CLIENT, net.service(2), all(&["pod1b"], Source::Node(1))),
    ]);
    Script::steps(steps)
}

fn churn(net: &Net) -> Script {
    let mut steps = web(net);
    let mut meanwhile = Vec::new();
    for pods in [&["pod1a", "pod2a"][..], PODS, &["pod2b"], &["pod1b", "pod2b", "pod2a"], PODS] {
        meanwhile.push(apply(net.slice("web", &Ep::all(pods))));
        meanwhile.push(tcp(CLIENT, net.service(1), all(pods, Source::Node(1))));
    }
    steps.push(Step::UnderLoad { from: CLIENT, to: net.service(1), steps: meanwhile });
    Script::steps(steps)
}

fn tampered(net: &Net, tamper: Tamper) -> Script {
    let mut steps = web(net);
    steps.extend([
        Step::Tamper(1, tamper),
        tcp(CLIENT, net.service(1), all(PODS, Source::Node(1))),
        tcp(POD1, net.service(1), all(PODS, Source::Any)),
        // And it still follows.
        apply(net.slice("web", &Ep::all(&["pod1b"]))),
        tcp(CLIENT, net.service(1), all(&["pod1b"], Source::Node(1))),
    ]);
    Script::steps(steps)
}
