//! `portway cleanup`: removes the objects that Portway and kube-proxy created in this network namespace.

use clap::Args;
use ipnet::IpNet;
use portway_dataplane::{IpvsSettings, Settings};
use portway_proxy::agent::{self, Leftover};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(2);

/// The flags of `portway cleanup`.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// List the objects that would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove the objects even if an agent runs, which restores them
    #[arg(long)]
    force: bool,
    /// Do not remove ipvs virtual servers at these addresses; same as ipvs.excludeCIDRs of the agent
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    exclude_cidrs: Vec<IpNet>,
}

/// Removes the objects, or lists them with `--dry-run`, and prints one line for each.
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    if !flags.dry_run && !flags.force {
        refuse_beside_an_agent()?;
    }
    let settings = settings(&flags.exclude_cidrs);
    let (found, errors) = if flags.dry_run { agent::find_leftovers(&settings) } else { clean_up(&settings) };
    let (verb, nothing_found) = match flags.dry_run {
        true => ("would remove", "there is nothing to remove"),
        false => ("removed", "there was nothing to remove"),
    };
    for leftover in &found {
        println!("{verb} {leftover}");
    }
    if found.is_empty() && errors.is_empty() {
        println!("{nothing_found}");
    }
    into_result(errors)
}

/// A running agent would restore its rules at once.
fn refuse_beside_an_agent() -> anyhow::Result<()> {
    anyhow::ensure!(
        !agent::agent_is_running(),
        "an agent runs in this network namespace and would restore the rules: stop it first, or use portway cleanup --force"
    );
    Ok(())
}

/// `kube-proxy --cleanup`: removes the objects and logs them; prints nothing on success.
pub(crate) fn remove(exclude: &[IpNet]) -> anyhow::Result<()> {
    refuse_beside_an_agent()?;
    let (removed, errors): (Vec<Leftover>, _) = clean_up(&settings(exclude));
    for leftover in removed {
        tracing::info!("removed {leftover}");
    }
    into_result(errors)
}

/// Removes the objects. What takes longer than [`PROGRESS`] is named on standard error, again and again.
fn clean_up(settings: &Settings) -> (Vec<Leftover>, Vec<portway_dataplane::Error>) {
    let (begins, begun) = mpsc::channel::<String>();
    let report = move || {
        let (mut location, mut since) = (String::new(), Instant::now());
        loop {
            match begun.recv_timeout(PROGRESS) {
                Ok(next) => (location, since) = (next, Instant::now()),
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!(
                        "removing the objects of {location}: {} seconds so far",
                        since.elapsed().as_secs()
                    );
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    // Without the thread there is no progress, and nothing else is lost.
    let progress = std::thread::Builder::new().spawn(report);
    let result = agent::cleanup(settings, |location| _ = begins.send(location.to_owned()));
    drop(begins);
    if let Ok(progress) = progress {
        _ = progress.join();
    }
    result
}

/// Settings under which virtual servers within `exclude` are not removed.
fn settings(exclude: &[IpNet]) -> Settings {
    let ipvs = IpvsSettings { exclude: exclude.to_vec(), ..IpvsSettings::default() };
    Settings { ipvs, ..Settings::default() }
}

/// An error with one line for each of `errors`; no error if there are none.
fn into_result(errors: Vec<portway_dataplane::Error>) -> anyhow::Result<()> {
    if errors.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    // Both families often fail for the same reason: print it once.
    lines.dedup();
    anyhow::bail!("{}", lines.join("\n"))
}
