//! `make bench`: measures Portway, and a reference for comparison in the same run on the same machine.
//!
//! The lab has one node, and an API server that the agent watches. Sizes are flags. The result is a table on standard
//! output and a JSON file.

mod cluster;
mod connections;
mod controllers;
mod guest;
mod iptables;
mod ipvs;
mod lists;
mod manifests;
mod peer;
mod plot;
mod report;
mod sync;
mod userspace;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use report::Report;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measures the agent in the lab.
#[derive(Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Options {
    /// Services in the cluster
    #[arg(long, default_value_t = 10_000)]
    services: usize,
    /// Endpoints of each Service
    #[arg(long, default_value_t = 10)]
    endpoints: usize,
    /// Sizes at which one change is timed, besides --services
    #[arg(long, value_delimiter = ',', default_value = "1000,50000")]
    sizes: Vec<usize>,
    /// How many single changes are timed at each size
    #[arg(long, default_value_t = 100)]
    changes: usize,
    /// How long endpoints change at a steady rate, in seconds
    #[arg(long, default_value_t = 60)]
    churn_seconds: u64,
    /// The rate of these changes, per second
    #[arg(long, default_value_t = 100)]
    churn_rate: u64,
    /// How many rounds of connections are measured
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long a round lasts, in milliseconds
    #[arg(long, default_value_t = 1000)]
    round_millis: u64,
    /// Services with node ports, for the iptables mode
    #[arg(long, default_value_t = 2_000)]
    iptables_services: usize,
    /// Services, for the ipvs mode
    #[arg(long, default_value_t = 2_000)]
    ipvs_services: usize,
    /// Numbers of Services at which connections are compared between modes
    #[arg(long, value_delimiter = ',', default_value = "10,2000,10000")]
    lists: Vec<usize>,
    /// Connections without traffic, for the userspace mode; fewer where a process may not open as many files
    #[arg(long, default_value_t = 20_000)]
    idle_connections: usize,
    /// Run only these parts
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "nftables,manifests,controllers,iptables,ipvs,lists,userspace"
    )]
    only: Vec<Part>,
    /// Compare with this kube-proxy binary instead of running the parts; with `--only controllers`, with this
    /// kube-controller-manager binary
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// With --peer: watch the API server of this kubeconfig instead of the benchmark's own
    #[arg(long, value_name = "FILE", requires = "peer")]
    kubeconfig: Option<PathBuf>,
    /// With --peer: Services in the cluster
    #[arg(long, default_value_t = 1_000)]
    peer_services: usize,
    /// With --peer: the modes to compare; all that both have if none is given
    #[arg(long, value_enum, value_delimiter = ',', requires = "peer")]
    peer_modes: Vec<cluster::Mode>,
    /// With --peer: how often each proxy is measured in each mode
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// With --peer: for how many seconds connections are counted after the rules were removed or the mode was switched
    #[arg(long, default_value_t = 45)]
    window_seconds: u64,
    /// The directory for the SVG plots
    #[arg(long, default_value = "target")]
    plots: PathBuf,
    /// The JSON file for the result: target/bench.json, or target/peer.json with --peer, unless given
    #[arg(long)]
    json: Option<PathBuf>,
    /// Print the log of the agent
    #[arg(long)]
    log: bool,
    /// Passed by `cargo bench`; ignored
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// The JSON file for the result.
    fn json_or(&self, default: &str) -> PathBuf {
        self.json.clone().unwrap_or_else(|| default.into())
    }
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The nftables mode
    Nftables,
    /// Memory when Services are read from manifests, in the nftables mode
    Manifests,
    /// The endpoint controllers
    Controllers,
    /// The iptables mode, both variants
    Iptables,
    /// The ipvs mode, in a guest if the kernel has no ip_vs
    Ipvs,
    /// The cost of a connection by the number of Services, in the nftables and iptables modes
    Lists,
    /// The userspace mode, compared with HAProxy
    Userspace,
    /// Only the connections without traffic of the userspace mode
    Idle,
}

fn main() -> ExitCode {
    if let Err(e) = portway_lab::enter() {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let options = Options::parse();
    // Cargo runs a bench in the directory of its package; files are written relative to the root of the workspace.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Err(e) = std::env::set_current_dir(&root) {
        eprintln!("{}: {e}", root.display());
        return ExitCode::FAILURE;
    }
    let done = match &options.peer {
        Some(path) if options.only != [Part::Controllers] => peer::run(&options, path),
        _ => measure(&options).map(|report| show(&options, &report)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn show(options: &Options, report: &Report) {
    println!("{report}");
    let json = options.json_or("target/bench.json");
    match report.write(&json) {
        Ok(()) => println!("\nas JSON: {}", json.display()),
        Err(e) => eprintln!("{}: {e}", json.display()),
    }
}

fn measure(options: &Options) -> Result<Report, String> {
    let has = |part| options.only.contains(&part);
    let steps = [
        (Part::Nftables, 6 + options.sizes.len()),
        (Part::Manifests, manifests::STEPS),
        (Part::Controllers, controllers::STEPS * (1 + usize::from(options.peer.is_some()))),
        (Part::Iptables, 2),
        (Part::Ipvs, 1),
        (Part::Lists, 3 * options.lists.len()),
        (Part::Userspace, userspace::STEPS),
        (Part::Idle, 1),
    ];
    let bar = progress(steps.iter().filter(|(part, _)| has(*part)).map(|(_, n)| *n as u64).sum());
    let mut report = Report::default();
    if has(Part::Nftables) {
        connections::one_service(options, &bar, &mut report)?;
        sync::first(options, &bar, &mut report)?;
        for size in &options.sizes {
            sync::change_at(options, *size, &bar, &mut report)?;
        }
    }
    if has(Part::Manifests) {
        manifests::measure(options, &bar, &mut report)?;
    }
    if has(Part::Controllers) {
        controllers::measure(options, options.peer.as_deref(), &bar, &mut report)?;
    }
    if has(Part::Iptables) {
        iptables::measure(options, &bar, &mut report)?;
    }
    if has(Part::Ipvs) {
        ipvs::measure(options, &bar, &mut report)?;
    }
    if has(Part::Lists) {
        lists::measure(options, &bar, &mut report)?;
    }
    if has(Part::Idle) {
        userspace::idle(options, &bar, &mut report)?;
    }
    if has(Part::Userspace) {
        userspace::measure(options, &bar, &mut report)?;
    }
    bar.finish_and_clear();
    report.add_size_ratios();
    Ok(report)
}

fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}
