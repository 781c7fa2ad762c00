//! A turn: one proxy in one mode, from its start to the repair of its rules after another process has removed them.

use super::Contender;
use super::comparison::{Comparison, Metric};
use super::disruption::Disruption;
use super::process_tree::{cpu_seconds, megabytes, wait_until_idle};
use super::testbed::{Client, SERVING, Testbed};
use crate::Options;
use crate::connections::best_rate;
use crate::lists::first_packet;
use crate::sync::median;
use indicatif::ProgressBar;
use portway_lab::Agent;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a proxy may take until its rules are complete; kube-proxy's tools are slow with many Services.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a change may take to reach packets.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// How many changes are timed.
const CHANGES: usize = 20;
/// The pause between changes: by default kube-proxy waits until a second after its last sync, which is not measured.
const PAUSE: Duration = Duration::from_millis(1500);
/// How long a client waits for an answer before it tries again.
const ATTEMPT: Duration = Duration::from_millis(10);

/// Measures one proxy in the mode of the testbed.
pub(super) fn run(
    options: &Options,
    testbed: &Testbed,
    contender: Contender,
    bar: &ProgressBar,
    comparison: &mut Comparison,
) -> Result<(), String> {
    let group = testbed.mode.name();
    let started = Instant::now();
    let agent = testbed.start(contender, testbed.mode)?;
    let figures = wait_for_connection(testbed, &agent)
        .map(|()| started.elapsed().as_secs_f64())
        .and_then(|first| figures(options, testbed, &agent, first));
    let show = |e: String| format!("{group}, {}: {e}\n{}", contender.name(), agent.log());
    let (figures, early) = figures.map_err(show)?;
    for (metric, value) in figures {
        comparison.add(group, contender, metric, value);
    }
    comparison.note_early(group, contender, early);
    if options.log {
        bar.suspend(|| println!("{}", agent.log()));
    }
    Ok(())
}

/// Waits for the first connection through the VIP.
pub(super) fn wait_for_connection(testbed: &Testbed, agent: &Agent) -> Result<(), String> {
    let deadline = Instant::now() + START_TIMEOUT;
    let connected = testbed.client(Client::Start).run(|| {
        while Instant::now() < deadline && cpu_seconds(agent.id()).is_some() {
            if TcpStream::connect_timeout(&testbed.vip, ATTEMPT).is_ok() {
                return true;
            }
        }
        false
    });
    if connected { Ok(()) } else { Err(format!("no connection through the VIP\n{}", agent.log())) }
}

/// All figures, and the number of connections that failed before the rules were removed.
fn figures(
    options: &Options,
    testbed: &Testbed,
    agent: &Agent,
    first_connection: f64,
) -> Result<(Vec<(Metric, f64)>, usize), String> {
    let pid = agent.id();
    let ended = "the process has ended";
    let start_cpu = wait_until_idle(pid, START_TIMEOUT)?;
    let (memory, _) = megabytes(pid).ok_or(ended)?;
    let rate = best_rate(options, testbed.client(Client::Steady), testbed.vip)?;
    let connect = testbed.client(Client::Steady).run(|| first_packet(testbed.vip));
    let change = change_to_packet(testbed)?;
    let churn = churn(options, testbed, pid)?;
    let (_, peak) = megabytes(pid).ok_or(ended)?;
    let length = Duration::from_secs(options.window_seconds);
    let (flush, ()) =
        Disruption::observe(testbed.client(Client::Load), testbed.vip, length, || testbed.flush())?;
    let figures = vec![
        (Metric::FirstPacket, first_connection),
        (Metric::StartCpu, start_cpu),
        (Metric::Change, change),
        (Metric::ChurnCpu, churn),
        (Metric::Memory, memory),
        (Metric::PeakMemory, peak),
        (Metric::Rate, rate),
        (Metric::Connect, connect),
        (Metric::FlushFailed, flush.failed as f64),
        (Metric::FlushRepaired, flush.seconds),
    ];
    Ok((figures, flush.early))
}

/// The median time in milliseconds from a change of the only endpoint at the API server to the first connection that
/// the new endpoint answers.
fn change_to_packet(testbed: &Testbed) -> Result<f64, String> {
    let (expect, expected) = mpsc::channel();
    let (report, answers) = mpsc::channel();
    let client = testbed.client(Client::Changes);
    thread::scope(|scope| {
        // One thread for all changes, which connects already when a change is made: to enter a namespace takes longer
        // than many a change.
        scope.spawn(move || {
            client.run(|| {
                expected.into_iter().try_for_each(|pod| report.send(wait_for_answer_of(testbed.vip, pod)))
            })
        });
        // Moved here, so that the thread ends when this closure does.
        let expect = expect;
        let mut times = Vec::new();
        for i in 0..CHANGES {
            let pod = SERVING[(i + 1) % SERVING.len()];
            thread::sleep(PAUSE);
            expect.send(pod).map_err(|e| e.to_string())?;
            let began = Instant::now();
            testbed.move_to(pod)?;
            let answered = answers.recv().map_err(|e| e.to_string())??;
            times.push(answered.saturating_duration_since(began).as_secs_f64() * 1e3);
        }
        Ok(median(times))
    })
}

/// Connects until a pod answers; returns when it did.
fn wait_for_answer_of(vip: SocketAddr, pod: &str) -> Result<Instant, String> {
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    let expected = format!("{pod} ");
    while Instant::now() < deadline {
        let mut greeting = [0; 64];
        let stream = TcpStream::connect_timeout(&vip, Duration::from_millis(100));
        let read = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_millis(100)))?;
            stream.read(&mut greeting)
        });
        if read.is_ok_and(|n| greeting[..n].starts_with(expected.as_bytes())) {
            return Ok(Instant::now());
        }
        // Leaves the processor to the proxy, and ports for later attempts.
        thread::sleep(Duration::from_millis(1));
    }
    Err(format!("a change of the endpoint did not reach packets within {CHANGE_TIMEOUT:?}"))
}

/// The cores that the proxy uses while endpoints of other Services change at a steady rate, until it has dealt with
/// them all.
fn churn(options: &Options, testbed: &Testbed, pid: u32) -> Result<f64, String> {
    let ended = "the process has ended";
    let before = wait_until_idle(pid, START_TIMEOUT)?;
    let began = Instant::now();
    for i in 0..options.churn_seconds * options.churn_rate {
        let n = 1 + (i as usize * 104_729) % (options.peer_services - 1);
        testbed.change(n, i as usize + 1)?;
        let due = began + Duration::from_secs_f64((i + 1) as f64 / options.churn_rate as f64);
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let seconds = began.elapsed().as_secs_f64();
    wait_until_idle(pid, START_TIMEOUT)?;
    Ok((cpu_seconds(pid).ok_or(ended)? - before) / seconds)
}
