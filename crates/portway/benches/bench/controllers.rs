//! The endpoint controllers: from nothing to all slices, one Pod that becomes ready or unready, and many a second.

use crate::Options;
use crate::cluster::{cpu, memory};
use crate::report::{Goal, Report};
use crate::sync::{WAIT_TIMEOUT, median};
use indicatif::ProgressBar;
use portway_lab::api::ApiServer;
use portway_lab::{Agent, Lab, Layout, eventually};
use portway_model::api::{
    Condition, IntOrString, Node, ObjectMeta, Pod, PodIp, PodSpec, PodStatus, Service, ServicePort,
    ServiceSpec, Time,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Single changes that are timed.
const FLIPS: usize = 200;
/// Changes a second, and for how many seconds.
const RATE: usize = 1000;
const SECONDS: usize = 10;

/// Services in a namespace. kube-controller-manager goes through all Pods of a namespace for each of its Services.
const SERVICES_PER_NAMESPACE: usize = 100;
/// Bytes of a megabyte of memory.
const MB: f64 = 1024.0 * 1024.0;

/// The number of steps for a process.
pub(crate) const STEPS: usize = 3;

/// A process that is measured.
#[derive(Clone, Copy, Debug)]
enum Contender<'a> {
    Portway,
    /// This binary of kube-controller-manager.
    Peer(&'a Path),
}

/// What was measured of a process.
#[derive(Debug)]
struct Figures {
    /// Until all slices and Endpoints objects were written.
    first_seconds: f64,
    /// The writes for that, against the fewest that do.
    first_writes: f64,
    /// Resident memory now and at its peak, in MB.
    memory: Option<(f64, f64)>,
    /// One change of a Pod, until both objects were written: median and 99th percentile.
    flip_ms: (f64, f64),
    /// How far it was behind after changes at a steady rate.
    behind_seconds: f64,
    writes_per_flip: f64,
    cpu_micros_per_flip: f64,
}

/// Measures the controllers; with a kube-controller-manager as the peer, that one too.
pub(crate) fn measure(
    options: &Options,
    peer: Option<&Path>,
    bar: &ProgressBar,
    report: &mut Report,
) -> Result<(), String> {
    let (services, per_service) = (options.services, options.endpoints);
    if services < FLIPS || per_service < 2 {
        return Err(format!(
            "the controllers are measured with {FLIPS} Services or more, of 2 endpoints or more"
        ));
    }
    let pods = services * per_service;
    let ours = measure_one(options, Contender::Portway, bar)?;
    add_portway(report, &ours, services, pods);
    if let Some(peer) = peer {
        let theirs = measure_one(options, Contender::Peer(peer), bar)?;
        add_peer(report, &ours, &theirs);
    }
    Ok(())
}

fn add_portway(report: &mut Report, figures: &Figures, services: usize, pods: usize) {
    let label = format!("controllers: from nothing to all slices of {services} Services and {pods} Pods");
    let goal = Goal::AtMost(60.0);
    report.add_with_goal("controllers_first_seconds", label, figures.first_seconds, "s", goal);
    let label = "controllers: writes for that, against the fewest that do";
    report.add_with_goal("controllers_first_writes", label, figures.first_writes, "×", Goal::AtMost(1.0));
    if let Some((now, peak)) = figures.memory {
        report.add("controllers_rss_mb", "controllers: resident memory", now, "MB");
        let label = "controllers: resident memory at its peak";
        report.add_with_goal("controllers_peak_mb", label, peak, "MB", Goal::AtMost(150.0));
        let (label, per_pod) = ("controllers: resident memory for each Pod", now * MB / pods as f64);
        report.add("controllers_bytes_per_pod", label, per_pod, "bytes");
    }
    let (median, high) = figures.flip_ms;
    let label = "controllers: one Pod changed, until both objects are written";
    report.add("controllers_flip_ms", label, median, "ms");
    report.add("controllers_flip_p99_ms", "controllers: the same, 99th percentile", high, "ms");
    let label = format!("controllers: writes for each of {RATE} changes a second");
    report.add_with_goal(
        "controllers_writes_per_flip",
        label,
        figures.writes_per_flip,
        "",
        Goal::AtMost(2.0),
    );
    let (label, cpu) = ("controllers: CPU for each of them", figures.cpu_micros_per_flip);
    report.add("controllers_cpu_per_flip", label, cpu, "µs");
    let (label, behind) = ("controllers: how far they were behind after that", figures.behind_seconds);
    report.add("controllers_behind_seconds", label, behind, "s");
}

/// The figures of kube-controller-manager, and Portway's against them.
fn add_peer(report: &mut Report, ours: &Figures, theirs: &Figures) {
    let peak = |figures: &Figures| figures.memory.map_or(f64::NAN, |(_, peak)| peak);
    let rows = [
        ("first_seconds", "from nothing to all slices", "s", ours.first_seconds, theirs.first_seconds),
        ("first_writes", "writes for that, against the fewest", "×", ours.first_writes, theirs.first_writes),
        ("peak_mb", "resident memory at its peak", "MB", peak(ours), peak(theirs)),
        ("flip_ms", "one Pod changed, until both are written", "ms", ours.flip_ms.0, theirs.flip_ms.0),
        ("flip_p99_ms", "the same, 99th percentile", "ms", ours.flip_ms.1, theirs.flip_ms.1),
        ("writes_per_flip", "writes for each change", "", ours.writes_per_flip, theirs.writes_per_flip),
        ("cpu_per_flip", "CPU for each", "µs", ours.cpu_micros_per_flip, theirs.cpu_micros_per_flip),
        ("behind_seconds", "how far behind after that", "s", ours.behind_seconds, theirs.behind_seconds),
    ];
    for (key, label, unit, ours, theirs) in rows {
        report.add(
            &format!("controllers_peer_{key}"),
            format!("kube-controller-manager: {label}"),
            theirs,
            unit,
        );
        report.add(
            &format!("controllers_ratio_{key}"),
            format!("Portway against that: {label}"),
            ours / theirs,
            "×",
        );
    }
}

fn measure_one(options: &Options, contender: Contender<'_>, bar: &ProgressBar) -> Result<Figures, String> {
    let (services, per_service) = (options.services, options.endpoints);
    bar.set_message(format!("filling an API server with {services} Services"));
    let bench = Bench::new()?;
    bench.fill(services, per_service);
    let started = Instant::now();
    let process = bench.start(contender)?;
    // A slice and an Endpoints object for each Service.
    let wanted = services * per_service.div_ceil(100) + services;
    bar.set_message("until all slices are written");
    bench.wait_for_writes(wanted).map_err(|e| format!("{e}\n{}", process.log().tail(20)))?;
    let first_seconds = started.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(2));
    let first_writes = bench.writes() as f64 / wanted as f64;
    let memory = memory(process.id());
    bar.inc(1);
    bar.set_message("one Pod becomes unready");
    let flip_ms = bench.time_flips(services)?;
    bar.inc(1);
    bar.set_message(format!("{RATE} Pods a second become ready or unready"));
    let (before, cpu_before) = (bench.writes(), used(&process)?);
    // Every Service changes several times, so that those that wait are merged.
    let changing = services.min(RATE * SECONDS / 5);
    let behind_seconds = bench.flip_steadily(changing, per_service);
    let flips = (RATE * SECONDS) as f64;
    let used = used(&process)? - cpu_before;
    bar.inc(1);
    if options.log {
        bar.suspend(|| println!("{}", process.log()));
    }
    Ok(Figures {
        first_seconds,
        first_writes,
        memory,
        flip_ms,
        behind_seconds,
        writes_per_flip: (bench.writes() - before) as f64 / flips,
        cpu_micros_per_flip: used * 1e6 / flips,
    })
}

/// CPU time of the controllers so far, in seconds.
fn used(process: &Agent) -> Result<f64, String> {
    cpu(process.id()).ok_or_else(|| format!("the controllers have exited:\n{}", process.log().tail(20)))
}

/// A node with an API server.
struct Bench {
    api: ApiServer,
    lab: Lab,
    kubeconfig: PathBuf,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let lab = Layout { nodes: 1, pods_per_node: 0, clients: 0 }.build().map_err(|e| e.to_string())?;
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let api = ApiServer::start(lab.node(1), address).map_err(|e| e.to_string())?;
        let kubeconfig =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.controllers", std::process::id()));
        std::fs::write(&kubeconfig, api.kubeconfig()).map_err(|e| e.to_string())?;
        Ok(Bench { api, lab, kubeconfig })
    }

    fn fill(&self, services: usize, per_service: usize) {
        let metadata = Some(ObjectMeta { name: "node-0".to_owned(), ..ObjectMeta::default() });
        self.api.put(Node { metadata, ..Node::default() });
        for number in 0..services {
            self.api.put(service(number));
            for index in 0..per_service {
                self.api.put(pod(number, index, true, 0));
            }
        }
    }

    fn start(&self, contender: Contender<'_>) -> Result<Agent, String> {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let (binary, flags) = match contender {
            Contender::Portway => {
                (Path::new(env!("CARGO_BIN_EXE_portway")), &["controller", "--kube-api-qps=0"][..])
            }
            // Its own limit of 20 requests a second would be what is measured.
            Contender::Peer(binary) => (
                binary,
                &[
                    "--controllers=endpointslice-controller,endpoints-controller",
                    "--kube-api-qps=100000",
                    "--kube-api-burst=100000",
                ][..],
            ),
        };
        let flags = [flags, &[kubeconfig.as_str(), "--leader-elect=false"]].concat();
        Agent::start(self.lab.node(1), binary, flags).map_err(|e| e.to_string())
    }

    /// Times single changes of a Pod: the median and the 99th percentile, in milliseconds.
    fn time_flips(&self, services: usize) -> Result<(f64, f64), String> {
        let mut times = Vec::new();
        for flip in 0..FLIPS {
            // Writes that are repeated must not count for the next change.
            self.wait_until_idle(Duration::from_millis(10));
            let (service, before) = (flip * 7919 % services, self.writes());
            let started = Instant::now();
            self.api.put(pod(service, 0, false, flip as i64));
            // The slice and the Endpoints object.
            while self.writes() < before + 2 {
                if started.elapsed() > WAIT_TIMEOUT {
                    return Err("a change led to no write".to_owned());
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            times.push(started.elapsed().as_secs_f64() * 1000.0);
        }
        times.sort_by(f64::total_cmp);
        let high = times[times.len() * 99 / 100];
        Ok((median(times), high))
    }

    /// Changes Pods at a steady rate. Returns for how many seconds writes went on after that.
    fn flip_steadily(&self, services: usize, per_service: usize) -> f64 {
        let started = Instant::now();
        for flip in 0..RATE * SECONDS {
            let service = flip * 104_729 % services;
            self.api.put(pod(service, per_service - 1, flip / services % 2 == 1, flip as i64));
            let due = started + Duration::from_secs_f64((flip + 1) as f64 / RATE as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let ended = Instant::now();
        let idle_since = self.wait_until_idle(Duration::from_millis(500));
        idle_since.saturating_duration_since(ended).as_secs_f64()
    }

    fn writes(&self) -> usize {
        self.api.write_count()
    }

    fn wait_for_writes(&self, wanted: usize) -> Result<(), String> {
        let done = || {
            let found = self.writes();
            if found >= wanted { Ok(()) } else { Err(format!("{found} of {wanted} writes")) }
        };
        eventually(WAIT_TIMEOUT, done).map_err(|e| e.to_string())
    }

    /// Waits until nothing is written for this time, and returns when the last write was seen.
    fn wait_until_idle(&self, quiet: Duration) -> Instant {
        let (mut writes, mut since) = (self.writes(), Instant::now());
        while since.elapsed() < quiet {
            std::thread::sleep(quiet / 50);
            if self.writes() != writes {
                (writes, since) = (self.writes(), Instant::now());
            }
        }
        since
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        std::fs::remove_file(&self.kubeconfig).ok();
    }
}

fn meta(name: String, service: usize, app: &str) -> Option<ObjectMeta> {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Some(ObjectMeta {
        uid: format!("b5b5a9f8-0f3e-4a4b-9a53-{name}"),
        name,
        namespace: format!("namespace-{}", service / SERVICES_PER_NAMESPACE),
        labels: [label("app", app), label("pod-template-hash", "7c5ddbdf54")].into(),
        ..ObjectMeta::default()
    })
}

fn service(number: usize) -> Service {
    let app = format!("service-{number:05}");
    Service {
        metadata: meta(app.clone(), number, &app),
        spec: Some(ServiceSpec {
            selector: [("app".to_owned(), app)].into(),
            cluster_ip: "10.96.0.1".to_owned(),
            ip_families: vec!["IPv4".to_owned()],
            kind: "ClusterIP".to_owned(),
            ports: vec![ServicePort {
                name: "http".to_owned(),
                protocol: "TCP".to_owned(),
                port: 80,
                target_port: Some(IntOrString::from(8080)),
                ..ServicePort::default()
            }],
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn pod(service: usize, index: usize, ready: bool, since: i64) -> Pod {
    let app = format!("service-{service:05}");
    let ip = Ipv4Addr::from(0x0b00_0000 + (service * 16 + index) as u32).to_string();
    Pod {
        metadata: meta(format!("{app}-7c5ddbdf54-{index:05}"), service, &app),
        spec: Some(PodSpec { node_name: "node-0".to_owned(), ..PodSpec::default() }),
        status: Some(PodStatus {
            phase: "Running".to_owned(),
            conditions: vec![Condition {
                kind: "Ready".to_owned(),
                status: if ready { "True" } else { "False" }.to_owned(),
                last_transition_time: Some(Time { seconds: 1_700_000_000 + since }),
                ..Condition::default()
            }],
            pod_ip: ip.clone(),
            pod_ips: vec![PodIp { ip }],
            ..PodStatus::default()
        }),
    }
}
