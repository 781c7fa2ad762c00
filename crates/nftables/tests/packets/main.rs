//! The packet tables that all modes share, evaluated with the rules of this mode.

#[path = "../node/mod.rs"]
mod node;

use node::mode;
use portway_dataplane::Driver;
use portway_dataplane::trace::{Host, Packet, Step, Trace};
use portway_model::Family;
use portway_nftables::Nftables;
use portway_nftables::eval::eval;
use portway_nftables::fake::Fake;
use portway_testkit::cluster::own_addresses;
use portway_testkit::mode::FamilyMode;
use portway_testkit::objects::Service;
use portway_testkit::packets::{self, Case, FakeNode, Followed, Path, Scenario, service_with_affinity};
use std::process::ExitCode;

fn main() -> ExitCode {
    let own = [Case {
        name: "affinity::policy_local_keeps_internal_and_external_affinity_apart",
        script: internal_and_external_affinity_are_separate,
    }];
    packets::main::<Node>(&own, &[], Vec::new())
}

/// The mode on a fake kernel, whose table has the clients with affinity.
struct Node(Driver<Nftables<Fake>>);

impl Node {
    fn trace(&mut self, packet: &Packet) -> Trace {
        let family = self.0.family();
        let host = Host::with_addresses(own_addresses(family));
        eval(self.0.program().kernel().table().unwrap(), family, packet, &host)
    }
}

impl FakeNode for Node {
    fn open(family: Family) -> Node {
        Node(mode(family))
    }

    fn mode(&mut self) -> &mut dyn FamilyMode {
        &mut self.0
    }

    fn follow(&mut self, packet: &Packet) -> Followed {
        let Trace { verdicts, paths } = self.trace(packet);
        let paths = paths.into_iter().map(|p| Path { steps: p.to_string(), verdict: p.verdict });
        Followed { verdicts, paths: paths.collect() }
    }

    fn store_affinity(&mut self, packet: &Packet, n: usize) -> bool {
        let steps = self.trace(packet).paths.swap_remove(n).steps;
        let before = self.0.program().kernel().table().cloned();
        for step in steps {
            if let Step::Remembered { list, client } = step {
                self.0.program().kernel().remember(&list, client);
            }
        }
        self.0.program().kernel().table() != before.as_ref()
    }
}

/// With external policy Local, affinity at a cluster IP has no effect at an external IP, even if the endpoint is local.
fn internal_and_external_affinity_are_separate() -> Vec<Scenario> {
    let scenario = Scenario::new(service_with_affinity(Service::external_local), &[])
        .connect("client", "svc1:80", "b")
        .rows(&[("client", "svc1:80", "b masqueraded"), ("client", "ext1:80", "a b")]);
    vec![scenario]
}
