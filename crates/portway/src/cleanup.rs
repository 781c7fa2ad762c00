//! `portway cleanup`: leave nothing behind.

use clap::Args;
use ipnet::IpNet;
use portway_dataplane::{IpvsSettings, Settings};
use portway_proxy::agent::{self, Leftover};

/// What is typed after `portway cleanup`.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// List what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Leave virtual servers of ipvs at these addresses alone, as the agent does by ipvs.excludeCIDRs
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    exclude_cidrs: Vec<IpNet>,
}

/// Does it, and says so.
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let settings = settings(&flags.exclude_cidrs);
    let (found, errors) =
        if flags.dry_run { agent::find_leftovers(&settings) } else { agent::cleanup(&settings) };
    let (some, none) = match flags.dry_run {
        true => ("would remove", "there is nothing to remove"),
        false => ("removed", "there was nothing to remove"),
    };
    for leftover in &found {
        println!("{some} {leftover}");
    }
    if found.is_empty() && errors.is_empty() {
        println!("{none}");
    }
    judge(errors)
}

/// Does it for `kube-proxy --cleanup`, which says nothing if all is well.
pub(crate) fn remove(exclude: &[IpNet]) -> anyhow::Result<()> {
    let (removed, errors): (Vec<Leftover>, _) = agent::cleanup(&settings(exclude));
    for leftover in removed {
        tracing::info!("removed {leftover}");
    }
    judge(errors)
}

/// Virtual servers within `exclude` belong to other programs.
fn settings(exclude: &[IpNet]) -> Settings {
    let ipvs = IpvsSettings { exclude: exclude.to_vec(), ..IpvsSettings::default() };
    Settings { ipvs, ..Settings::default() }
}

fn judge(errors: Vec<portway_dataplane::Error>) -> anyhow::Result<()> {
    if errors.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    // What both families are refused for is said once.
    lines.dedup();
    anyhow::bail!("{}", lines.join("\n"))
}
