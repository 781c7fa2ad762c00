//! The packet tables, followed through the rules, sets and virtual servers of this mode.

#[path = "../node/mod.rs"]
mod node;

use node::{Mode, mode};
use portway_dataplane::trace::{Host, Packet, Step, Trace};
use portway_ipvs::eval::{Snapshot, eval};
use portway_model::{Family, Target};
use portway_testkit::cluster::own_addresses;
use portway_testkit::mode::FamilyMode;
use portway_testkit::packets::{self, Exception, FakeNode, Followed, Path};
use portway_xtables::eval::Ruleset;
use std::net::IpAddr;
use std::process::ExitCode;

const EXCEPTIONS: &[Exception] = &[
    Exception {
        case: "external::source_ranges_apply_to_the_load_balancer_ip_only",
        row: ("stranger", "lb1:81", "untouched"),
        verdict: "rejected",
        reason: "the address is on kube-ipvs0, and ports without a Service are rejected there",
    },
    affinity_by_frontend("node:30001", "a masqueraded"),
    affinity_by_frontend("node:30001", "b masqueraded"),
    affinity_by_frontend("node:30001", "c masqueraded"),
    affinity_by_frontend("ext1:80", "a masqueraded"),
    affinity_by_frontend("ext1:80", "b masqueraded"),
    affinity_by_frontend("ext1:80", "c masqueraded"),
];

const fn affinity_by_frontend(to: &'static str, shared: &'static str) -> Exception {
    Exception {
        case: "affinity::client_with_affinity_keeps_its_endpoint_at_every_frontend",
        row: ("client", to, shared),
        verdict: "a b c masqueraded",
        reason: "the kernel stores affinity by the address and port that the client uses",
    }
}

fn main() -> ExitCode {
    packets::main::<Node>(&[], EXCEPTIONS, Vec::new())
}

/// The mode, and the affinity that its virtual servers have stored.
struct Node {
    mode: Mode,
    affinity: Vec<(String, IpAddr, Target)>,
}

impl Node {
    fn trace(&mut self, packet: &Packet) -> Trace {
        let family = self.mode.family();
        let rules = Ruleset::parse(&self.mode.program().rules().program().kernel().tables().to_string());
        let host = Host::with_addresses(own_addresses(family));
        let mut objects = Snapshot::of_kernel(family, self.mode.program().kernel()).unwrap();
        objects.affinity = self.affinity.clone();
        eval(&rules, family, packet, &host, &objects)
    }
}

impl FakeNode for Node {
    fn open(family: Family) -> Node {
        Node { mode: mode(family), affinity: Vec::new() }
    }

    fn mode(&mut self) -> &mut dyn FamilyMode {
        &mut self.mode
    }

    fn follow(&mut self, packet: &Packet) -> Followed {
        let Trace { verdicts, paths } = self.trace(packet);
        let paths = paths.into_iter().map(|p| Path { steps: p.to_string(), verdict: p.verdict });
        Followed { verdicts, paths: paths.collect() }
    }

    fn store_affinity(&mut self, packet: &Packet, n: usize) -> bool {
        let before = self.affinity.len();
        let mut server = None;
        for step in self.trace(packet).paths.swap_remove(n).steps {
            match step {
                Step::Accepted { by } => server = Some(by),
                Step::Translated(target) => {
                    let server = server.take().filter(|s| s.contains("persistent"));
                    self.affinity.extend(server.map(|server| (server, packet.source, target)));
                }
                _ => {}
            }
        }
        self.affinity.len() > before
    }
}
