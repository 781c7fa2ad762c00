//! The node answers with a reset at an address without a virtual server, so the order of changes must never cause that
//! state.

use super::start;
use crate::agent_lab::{AgentLab, wait_timeout};
use crate::documented_rules::manifest;
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::{Probe, eventually};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] =
    &[("creating_and_deleting_a_service_refuses_no_other_connection", created_and_deleted)];

/// How often the Service is created and deleted, unless `PORTWAY_TURNS` has another number, as in `make soak`.
const TURNS: usize = 20;
/// The number of its ports: clients connect while their virtual servers are created and deleted.
const PORTS: u16 = 200;
/// Connections that are attempted at a time.
const AT_ONCE: usize = 16;
/// The time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
/// The pause between two checks of the address.
const PAUSE: Duration = Duration::from_millis(10);

fn created_and_deleted(lab: &mut AgentLab) -> Outcome {
    let turns = std::env::var("PORTWAY_TURNS").map_or(Ok(TURNS), |asked| asked.parse())?;
    let names: Vec<String> = (0..PORTS).map(|n| format!("p{n}")).collect();
    let ports: Vec<_> =
        names.iter().zip(80..).map(|(name, port)| (name.as_str(), "TCP", port, 8080)).collect();
    let pods = ["pod1a", "pod1b"].map(|pod| lab.pod_ips(pod)[0].to_string());
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let manifest = manifest(&("default/busy", "10.96.0.70", &ports, &pods));
    // Its endpoints exist all the time.
    let (service, slice) = manifest.split_once("---\n").ok_or("two objects")?;
    lab.apply("busy-slice.yaml", slice);
    start(lab, &[])?;
    lab.logged(&["synced", "family=\"IPv4\""])?;
    let over = AtomicBool::new(false);
    let (answered, refused) = thread::scope(|scope| -> Result<(usize, usize), Failed> {
        let client = lab.client();
        let probing = scope.spawn(|| {
            let (mut answered, mut refused) = (0, 0);
            for port in (80..80 + PORTS).step_by(7).cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let outcome = Probe::tcp(client, SocketAddr::new([10, 96, 0, 70].into(), port))
                    .count(AT_ONCE)
                    .timeout(ANSWER_TIMEOUT)
                    .run();
                answered += outcome.answered();
                refused += outcome.refused + outcome.other.values().sum::<usize>();
            }
            (answered, refused)
        });
        let taken = (0..turns).try_for_each(|_| {
            lab.apply("busy.yaml", service);
            has_address(lab, true)?;
            lab.delete("busy.yaml");
            has_address(lab, false)
        });
        over.store(true, Ordering::Relaxed);
        let counted = probing.join().map_err(|_| "the client panicked")?;
        taken.map(|()| counted)
    })?;
    ensure(refused == 0, || format!("{refused} connections were refused, {answered} answered"))?;
    ensure(answered >= turns, || format!("only {answered} connections were answered"))?;
    lab.web_works()
}

/// Waits until the node has the address, or no longer has it. The routing table is the fastest way to find out.
fn has_address(lab: &AgentLab, wanted: bool) -> Outcome {
    let attempt = || {
        let routes = lab.node().run(|| std::fs::read_to_string("/proc/thread-self/net/fib_trie"));
        let present = routes.map_err(|e| e.to_string())?.contains("10.96.0.70\n");
        thread::sleep(PAUSE);
        if present == wanted { Ok(()) } else { Err(format!("the address is present: {present}")) }
    };
    Ok(eventually(wait_timeout(), attempt)?)
}
