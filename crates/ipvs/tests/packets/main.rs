//! Packets followed through rules, sets and servers: the table that every mode has to follow, in what this mode makes.

#[path = "../node/mod.rs"]
mod node;

use libtest_mimic::{Arguments, Failed, Trial};
use node::mode;
use portway_dataplane::Dataplane;
use portway_dataplane::packet::Packet;
use portway_dataplane::packets::{Differs, Followed, Machine, Way, tests};
use portway_dataplane::world::own_addresses;
use portway_iptables::eval::{Host, Ruleset, Step, Trace};
use portway_iptables::fake::Fake as Tables;
use portway_ipvs::Ipvs;
use portway_ipvs::eval::{Beside, eval};
use portway_ipvs::fake::Fake;
use portway_model::Family;
use std::process::ExitCode;

const DIFFERS: &[Differs] = &[
    Differs {
        case: "external::source_ranges_guard_the_load_balancer_ip_alone",
        row: ("stranger", "lb1:81", "untouched"),
        here: "rejected",
        why: "the address is this machine's, and what else listens there is not meant",
    },
    apart("node:30001", "a masqueraded"),
    apart("node:30001", "b masqueraded"),
    apart("node:30001", "c masqueraded"),
    apart("ext1:80", "a masqueraded"),
    apart("ext1:80", "b masqueraded"),
    apart("ext1:80", "c masqueraded"),
];

const fn apart(to: &'static str, shared: &'static str) -> Differs {
    Differs {
        case: "affinity::a_known_client_goes_where_it_went_at_every_frontend",
        row: ("client", to, shared),
        here: "a b c masqueraded",
        why: "the kernel remembers a client by the address and port that it uses",
    }
}

fn main() -> ExitCode {
    let trials = tests(Node::new, &[], DIFFERS)
        .into_iter()
        .map(|test| Trial::test(test.name, move || (test.run)().map_err(Failed::from)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The mode, and the clients that its servers remember.
struct Node {
    mode: Ipvs<Fake, Tables>,
    met: Vec<(String, std::net::IpAddr, portway_model::Target)>,
}

impl Node {
    fn new(family: Family) -> Node {
        Node { mode: mode(family), met: Vec::new() }
    }

    fn trace(&mut self, packet: &Packet) -> Trace {
        let family = self.mode.family();
        let rules = Ruleset::parse(&self.mode.rules().kernel().tables().to_string());
        let host = Host { addresses: own_addresses(family).into(), ..Host::default() };
        let mut beside = Beside::of_kernel(family, self.mode.kernel()).unwrap();
        beside.met = self.met.clone();
        eval(&rules, family, packet, &host, &beside)
    }
}

impl Machine for Node {
    fn mode(&mut self) -> &mut dyn Dataplane {
        &mut self.mode
    }

    fn follow(&mut self, packet: &Packet) -> Followed {
        let Trace { verdicts, paths } = self.trace(packet);
        let ways = paths.into_iter().map(|p| Way { steps: p.to_string(), verdict: p.verdict });
        Followed { verdicts, ways: ways.collect() }
    }

    fn remember(&mut self, packet: &Packet, n: usize) -> bool {
        let before = self.met.len();
        let mut server = None;
        for step in self.trace(packet).paths.swap_remove(n).steps {
            match step {
                Step::Taken(taken) => server = Some(taken),
                Step::Translated(target) => {
                    let server = server.take().filter(|s| s.contains("persistent"));
                    self.met.extend(server.map(|server| (server, packet.source, target)));
                }
                _ => {}
            }
        }
        self.met.len() > before
    }
}
