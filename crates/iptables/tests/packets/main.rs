//! The packet tests that all modes share, evaluated with the rules of this mode, and cases for this mode only.

#[path = "../node/mod.rs"]
mod node;

mod iptables_only;

use node::mode;
use portway_dataplane::trace::{Host, Packet, Step, Trace};
use portway_iptables::Iptables;
use portway_model::Family;
use portway_testkit::cluster::own_addresses;
use portway_testkit::harness::Test;
use portway_testkit::mode::FamilyMode;
use portway_testkit::packets::{self, FakeNode, Followed, Path};
use portway_xtables::Variant;
use portway_xtables::eval::{Ruleset, eval};
use portway_xtables::fake::Fake;
use std::process::ExitCode;

fn main() -> ExitCode {
    let health_check = Test::function(
        "external::health_check_node_port_is_accepted_under_a_drop_policy",
        iptables_only::health_check_node_port_is_accepted_under_a_drop_policy,
    );
    packets::main::<Node>(iptables_only::CASES, iptables_only::EXCEPTIONS, vec![health_check])
}

/// The mode, and the state of the host that rules match: its addresses, and the lists of recent clients.
struct Node {
    mode: Iptables<Fake>,
    host: Host,
}

impl Node {
    fn trace(&self, rules: &str, packet: &Packet) -> Trace {
        eval(&Ruleset::parse(rules), self.mode.family(), packet, &self.host)
    }

    /// Evaluates the rules in the kernel.
    fn listed(&mut self, packet: &Packet) -> Trace {
        let listed = self.mode.program().kernel().tables().to_string();
        self.trace(&listed, packet)
    }
}

impl FakeNode for Node {
    fn open(family: Family) -> Node {
        let host = Host::with_addresses(own_addresses(family));
        Node { mode: mode(family, Variant::Legacy), host }
    }

    fn mode(&mut self) -> &mut dyn FamilyMode {
        &mut self.mode
    }

    /// Evaluates the rules in the kernel, and asserts that the wanted rules have the same verdicts.
    fn follow(&mut self, packet: &Packet) -> Followed {
        let wanted = self.trace(&self.mode.as_program().wanted(), packet);
        let Trace { verdicts, paths } = self.listed(packet);
        assert_eq!(verdicts, wanted.verdicts, "{packet:?}");
        let paths = paths.into_iter().map(|p| Path { steps: p.to_string(), verdict: p.verdict });
        Followed { verdicts, paths: paths.collect() }
    }

    fn store_affinity(&mut self, packet: &Packet, n: usize) -> bool {
        let before = self.host.recent.len();
        for step in self.listed(packet).paths.swap_remove(n).steps {
            if let Step::Remembered { list, client } = step {
                self.host.recent.insert((list, client));
            }
        }
        self.host.recent.len() > before
    }
}
