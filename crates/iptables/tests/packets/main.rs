//! Packets followed through the rules: the table that every mode has to follow, in this mode's rules, and the rows
//! that are this mode's own.

#[path = "../node/mod.rs"]
mod node;

mod own;

use libtest_mimic::{Arguments, Failed, Trial};
use node::mode;
use portway_dataplane::Dataplane;
use portway_dataplane::packet::Packet;
use portway_dataplane::packets::{Followed, Machine, Way, tests};
use portway_dataplane::world::own_addresses;
use portway_iptables::eval::{Host, Ruleset, Step, Trace, eval};
use portway_iptables::fake::Fake;
use portway_iptables::{Iptables, Variant};
use portway_model::Family;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut trials: Vec<Trial> = tests(Node::new, own::CASES, own::DIFFERS)
        .into_iter()
        .map(|test| Trial::test(test.name, move || (test.run)().map_err(Failed::from)))
        .collect();
    trials.push(Trial::test("external::a_port_for_health_checks_is_open_whatever_the_policy", || {
        own::a_port_for_health_checks_is_open_whatever_the_policy();
        Ok(())
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The mode, and the lists of recent clients.
struct Node {
    mode: Iptables<Fake>,
    host: Host,
}

impl Node {
    fn new(family: Family) -> Node {
        let host = Host { addresses: own_addresses(family).into(), ..Host::default() };
        Node { mode: mode(family, Variant::Legacy), host }
    }

    fn trace(&self, rules: &str, packet: &Packet) -> Trace {
        eval(&Ruleset::parse(rules), self.mode.family(), packet, &self.host)
    }

    /// Through what the kernel holds.
    fn listed(&mut self, packet: &Packet) -> Trace {
        let listed = self.mode.kernel().tables().to_string();
        self.trace(&listed, packet)
    }
}

impl Machine for Node {
    fn mode(&mut self) -> &mut dyn Dataplane {
        &mut self.mode
    }

    /// What is wanted leads where the kernel's rules do.
    fn follow(&mut self, packet: &Packet) -> Followed {
        let wanted = self.trace(&self.mode.wanted(), packet);
        let Trace { verdicts, paths } = self.listed(packet);
        assert_eq!(verdicts, wanted.verdicts, "{packet:?}");
        let ways = paths.into_iter().map(|p| Way { steps: p.to_string(), verdict: p.verdict });
        Followed { verdicts, ways: ways.collect() }
    }

    fn remember(&mut self, packet: &Packet, n: usize) -> bool {
        let before = self.host.recent.len();
        for step in self.listed(packet).paths.swap_remove(n).steps {
            if let Step::Remembered { list, client } = step {
                self.host.recent.insert((list, client));
            }
        }
        self.host.recent.len() > before
    }
}
