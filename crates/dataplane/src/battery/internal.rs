//! Internal traffic policy.

use super::{CLIENT, Case, Ep, Expect, NODE1, NODE2, Net, POD2, Place, Script, Source, Svc, all, apply, tcp};

pub(super) const CASES: &[Case] = &[
    Case { name: "internal_policy_local_stays_on_the_node", script: stays },
    Case { name: "internal_policy_local_without_local_is_dropped", script: dropped },
];

fn stays(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).internal_local()),
        apply(net.slice("web", &Ep::all(&["pod1a", "pod2a", "pod2b"]))),
        tcp(Place::Pod("pod1b"), net.service(1), all(&["pod1a"], Source::Own)),
        tcp(POD2, net.service(1), all(&["pod2a", "pod2b"], Source::Any)),
        tcp(NODE1, net.service(1), all(&["pod1a"], Source::Node(1))),
        tcp(CLIENT, net.service(1), all(&["pod1a"], Source::Node(1))),
    ])
}

fn dropped(net: &Net) -> Script {
    Script::steps(vec![
        apply(Svc::new(net, "web", 1).internal_local().node_port(30001)),
        apply(net.slice("web", &Ep::all(&["pod1a"]))),
        tcp(Place::Pod("pod1b"), net.service(1), all(&["pod1a"], Source::Own)),
        tcp(POD2, net.service(1), Expect::TimedOut),
        tcp(NODE2, net.service(1), Expect::TimedOut),
        // The external policy is another one.
        tcp(CLIENT, net.node_port(2, 30001), all(&["pod1a"], Source::Node(2))),
        apply(net.slice("web", &[])),
        tcp(POD2, net.service(1), Expect::Refused),
    ])
}
