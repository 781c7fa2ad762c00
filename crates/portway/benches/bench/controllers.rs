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

/// The number of steps.
pub(crate) const STEPS: usize = 3;

/// Measures the controllers.
pub(crate) fn measure(options: &Options, bar: &ProgressBar, report: &mut Report) -> Result<(), String> {
    let (services, per_service) = (options.services, options.endpoints);
    if services < FLIPS || per_service < 2 {
        return Err(format!(
            "the controllers are measured with {FLIPS} Services or more, of 2 endpoints or more"
        ));
    }
    let pods = services * per_service;
    bar.set_message(format!("filling an API server with {services} Services and {pods} Pods"));
    let bench = Bench::new()?;
    bench.fill(services, per_service);
    let started = Instant::now();
    let process = bench.start()?;
    // A slice and an Endpoints object for each Service.
    let wanted = services * per_service.div_ceil(100) + services;
    bench.wait_for_writes(wanted)?;
    let took = started.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_secs(2));
    let label = format!("controllers: from nothing to all slices of {services} Services and {pods} Pods");
    report.add_with_goal("controllers_first_seconds", label, took, "s", Goal::AtMost(60.0));
    let writes = bench.writes() as f64 / wanted as f64;
    let label = "controllers: writes for that, against the fewest that do";
    report.add_with_goal("controllers_first_writes", label, writes, "×", Goal::AtMost(1.0));
    if let Some((now, peak)) = memory(process.id()) {
        report.add("controllers_rss_mb", "controllers: resident memory", now, "MB");
        let label = "controllers: resident memory at its peak";
        report.add_with_goal("controllers_peak_mb", label, peak, "MB", Goal::AtMost(150.0));
        let per_pod = now * 1024.0 * 1024.0 / pods as f64;
        report.add(
            "controllers_bytes_per_pod",
            "controllers: resident memory for each Pod",
            per_pod,
            "bytes",
        );
    }
    bar.inc(1);

    bar.set_message("one Pod becomes unready");
    let mut times = Vec::new();
    for flip in 0..FLIPS {
        let (service, before) = (flip * 7919 % services, bench.writes());
        let started = Instant::now();
        bench.api.put(pod(service, 0, false, flip as i64));
        // The slice and the Endpoints object.
        while bench.writes() < before + 2 {
            if started.elapsed() > WAIT_TIMEOUT {
                return Err("a change led to no write".to_owned());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let high = times[times.len() * 99 / 100];
    report.add(
        "controllers_flip_ms",
        "controllers: one Pod changed, until both objects are written",
        median(times),
        "ms",
    );
    report.add("controllers_flip_p99_ms", "controllers: the same, 99th percentile", high, "ms");
    bar.inc(1);

    bar.set_message(format!("{RATE} Pods a second become ready or unready"));
    let (before, cpu_before) = (bench.writes(), used(&process)?);
    let started = Instant::now();
    // Every Service changes several times, so that those that wait are merged.
    let changing = services.min(RATE * SECONDS / 5);
    for flip in 0..RATE * SECONDS {
        let service = flip * 104_729 % changing;
        bench.api.put(pod(service, per_service - 1, flip / changing % 2 == 1, flip as i64));
        let due = started + Duration::from_secs_f64((flip + 1) as f64 / RATE as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let behind = Instant::now();
    let idle_since = bench.wait_until_idle();
    let lag = idle_since.saturating_duration_since(behind).as_secs_f64();
    report.add("controllers_behind_seconds", "controllers: how far they were behind after that", lag, "s");
    let flips = (RATE * SECONDS) as f64;
    let used = used(&process)? - cpu_before;
    let label = format!("controllers: writes for each of {RATE} changes a second");
    let per_flip = (bench.writes() - before) as f64 / flips;
    report.add_with_goal("controllers_writes_per_flip", label, per_flip, "", Goal::AtMost(2.0));
    report.add("controllers_cpu_per_flip", "controllers: CPU for each of them", used * 1e6 / flips, "µs");
    bar.inc(1);
    if options.log {
        bar.suspend(|| println!("{}", process.log()));
    }
    Ok(())
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

    fn start(&self) -> Result<Agent, String> {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let flags = ["controller", &kubeconfig, "--kube-api-qps=0", "--leader-elect=false"];
        Agent::start(self.lab.node(1), Path::new(env!("CARGO_BIN_EXE_portway")), flags)
            .map_err(|e| e.to_string())
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

    /// Waits until nothing is written for half a second, and returns when the last write was seen.
    fn wait_until_idle(&self) -> Instant {
        let (mut writes, mut since) = (self.writes(), Instant::now());
        while since.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(10));
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

fn meta(name: String, app: &str) -> Option<ObjectMeta> {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Some(ObjectMeta {
        uid: format!("b5b5a9f8-0f3e-4a4b-9a53-{name}"),
        name,
        namespace: "default".to_owned(),
        labels: [label("app", app), label("pod-template-hash", "7c5ddbdf54")].into(),
        ..ObjectMeta::default()
    })
}

fn service(number: usize) -> Service {
    let app = format!("service-{number:05}");
    Service {
        metadata: meta(app.clone(), &app),
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
        metadata: meta(format!("{app}-7c5ddbdf54-{index:05}"), &app),
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
