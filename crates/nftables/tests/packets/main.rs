//! Packets followed through the rules: the table that every mode has to follow, in this mode's rules.

#[path = "../node/mod.rs"]
mod node;

use libtest_mimic::{Arguments, Failed, Trial};
use node::mode;
use portway_dataplane::Dataplane;
use portway_dataplane::packet::Packet;
use portway_dataplane::packets::{Case, Followed, Machine, Scene, Way, sticky, tests};
use portway_dataplane::world::own_addresses;
use portway_model::Family;
use portway_nftables::Nftables;
use portway_nftables::eval::{Host, Step, Trace, eval};
use portway_nftables::fake::Fake;
use serde_json::json;
use std::process::ExitCode;

fn main() -> ExitCode {
    let own = [Case {
        name: "affinity::with_policy_local_inside_and_outside_are_remembered_apart",
        script: remembered_apart,
    }];
    let trials = tests(Node::new, &own, &[])
        .into_iter()
        .map(|test| Trial::test(test.name, move || (test.run)().map_err(Failed::from)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The mode, in a kernel that remembers clients in the table.
struct Node(Nftables<Fake>);

impl Node {
    fn new(family: Family) -> Node {
        Node(mode(family))
    }

    fn trace(&mut self, packet: &Packet) -> Trace {
        let family = self.0.family();
        let host = Host { addresses: own_addresses(family).into() };
        eval(self.0.kernel().table().unwrap(), family, packet, &host)
    }
}

impl Machine for Node {
    fn mode(&mut self) -> &mut dyn Dataplane {
        &mut self.0
    }

    fn follow(&mut self, packet: &Packet) -> Followed {
        let Trace { verdicts, paths } = self.trace(packet);
        let ways = paths.into_iter().map(|p| Way { steps: p.to_string(), verdict: p.verdict });
        Followed { verdicts, ways: ways.collect() }
    }

    fn remember(&mut self, packet: &Packet, n: usize) -> bool {
        let steps = self.trace(packet).paths.swap_remove(n).steps;
        let before = self.0.kernel().table().cloned();
        for step in steps {
            if let Step::Remembered { set, client } = step {
                self.0.kernel().remember(&set, client);
            }
        }
        self.0.kernel().table() != before.as_ref()
    }
}

/// What was met inside counts for nothing outside, even where it may be met.
fn remembered_apart() -> Vec<Scene> {
    let scene = Scene::new(sticky(json!({"externalTrafficPolicy": "Local"})), &[])
        .meets("client", "svc1:80", "b")
        .rows(&[("client", "svc1:80", "b masqueraded"), ("client", "ext1:80", "a b")]);
    vec![scene]
}
