//! An address without its server answers with a reset, so there is never a moment with one.

use super::start;
use crate::agent_lab::{AgentLab, patience};
use crate::documented_rules::manifest;
use crate::{Outcome, Test, ensure};
use libtest_mimic::Failed;
use portway_lab::{Probe, eventually};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] =
    &[("creating_and_deleting_a_service_refuses_no_other_connection", comes_and_goes)];

/// How often it comes, unless `PORTWAY_TURNS` asks for more: `make soak` does.
const TURNS: usize = 20;
/// Its ports: clients may connect while their virtual servers are created and deleted.
const PORTS: u16 = 200;
/// Connections that are tried at a time.
const AT_ONCE: usize = 16;
/// How long an answer is awaited.
const WAIT: Duration = Duration::from_millis(200);
/// How long it may take to be seen.
const PAUSE: Duration = Duration::from_millis(10);

fn comes_and_goes(world: &mut AgentLab) -> Outcome {
    let turns = std::env::var("PORTWAY_TURNS").map_or(Ok(TURNS), |asked| asked.parse())?;
    let names: Vec<String> = (0..PORTS).map(|n| format!("p{n}")).collect();
    let ports: Vec<_> =
        names.iter().zip(80..).map(|(name, port)| (name.as_str(), "TCP", port, 8080)).collect();
    let pods = ["pod1a", "pod1b"].map(|pod| world.pod_ips(pod)[0].to_string());
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let manifest = manifest(&("default/busy", "10.96.0.70", &ports, &pods));
    // Its endpoints are there before, and stay.
    let (service, slice) = manifest.split_once("---\n").ok_or("two objects")?;
    world.apply("busy-slice.yaml", slice);
    start(world, &[])?;
    world.logged(&["synced", "family=IPv4"])?;
    let over = AtomicBool::new(false);
    let (answered, refused) = thread::scope(|scope| -> Result<(usize, usize), Failed> {
        let client = world.client();
        let knocking = scope.spawn(|| {
            let (mut answered, mut refused) = (0, 0);
            for port in (80..80 + PORTS).step_by(7).cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let outcome = Probe::tcp(client, SocketAddr::new([10, 96, 0, 70].into(), port))
                    .count(AT_ONCE)
                    .timeout(WAIT)
                    .run();
                answered += outcome.answered();
                refused += outcome.refused + outcome.other.values().sum::<usize>();
            }
            (answered, refused)
        });
        let taken = (0..turns).try_for_each(|_| {
            world.apply("busy.yaml", service);
            has_address(world, true)?;
            world.delete("busy.yaml");
            has_address(world, false)
        });
        over.store(true, Ordering::Relaxed);
        let counted = knocking.join().map_err(|_| "the client panicked")?;
        taken.map(|()| counted)
    })?;
    ensure(refused == 0, || format!("{refused} connections were refused, {answered} answered"))?;
    ensure(answered >= turns, || format!("only {answered} connections were answered"))?;
    world.web_works()
}

/// Waits until the address is there, or gone: as the kernel's own list of routes has it, which is quickly read.
fn has_address(world: &AgentLab, wanted: bool) -> Outcome {
    let attempt = || {
        let routes = world.node().run(|| std::fs::read_to_string("/proc/thread-self/net/fib_trie"));
        let there = routes.map_err(|e| e.to_string())?.contains("10.96.0.70\n");
        thread::sleep(PAUSE);
        if there == wanted { Ok(()) } else { Err(format!("there: {there}")) }
    };
    Ok(eventually(patience(), attempt)?)
}
