//! `portway cleanup`: leave nothing behind.

use clap::Args;
use portway_proxy::agent;

/// Removes the nftables tables `ip portway` and `ip6 portway`. Connections that are open stay open, as far as
/// connection tracking knows them; everybody else's tables are left alone.
#[derive(Debug, Args)]
pub(crate) struct Flags {}

/// Does it, and says so.
pub(crate) fn run(_flags: &Flags) -> anyhow::Result<()> {
    remove()?;
    println!("removed everything Portway made in this network namespace");
    Ok(())
}

pub(crate) fn remove() -> anyhow::Result<()> {
    agent::cleanup().map_err(|errors| {
        let mut lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        // What both families are refused for is said once.
        lines.dedup();
        anyhow::anyhow!("{}", lines.join("\n"))
    })
}
