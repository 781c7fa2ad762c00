//! `portway proxy`: from flags to a running agent.

use anyhow::{Context, anyhow, bail};
use portway_proxy::agent::{self, Options};
use portway_proxy::config::{Config, ConfigError, IgnoredFlag, ProxyFlags, Typed, merge, parse, print};
use portway_serve::logging;
use std::path::Path;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Does what the flags say.
pub(crate) fn run(flags: ProxyFlags) -> anyhow::Result<()> {
    if let Some(version) = &flags.run.version {
        let name = if version == "raw" { "portway" } else { "Portway" };
        if version != "false" {
            println!("{name} {VERSION}");
            return Ok(());
        }
    }
    let (config, ignored) = read(&flags)?;
    if let Some(path) = &flags.run.write_config_to {
        return write(&config, path);
    }
    logging::start(config.logging.format, config.logging.verbosity);
    for flag in ignored {
        tracing::warn!("{flag}");
    }
    if flags.run.cleanup == Some(true) {
        return crate::cleanup::remove(&config.ipvs.exclude_cidrs);
    }
    if flags.run.init_only == Some(true) {
        return Ok(agent::prepare(&config)?);
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the event loop")?;
    let options = Options {
        manifests: flags.run.manifests.clone(),
        config,
        flags,
        version: VERSION,
        set_verbosity: logging::set_verbosity,
    };
    // Not joined to a lint for large futures: there is one, and it lives as long as the process.
    runtime.block_on(Box::pin(agent::run(options)))?;
    Ok(())
}

fn read(flags: &ProxyFlags) -> anyhow::Result<(Config, Vec<IgnoredFlag>)> {
    let file = flags.run.config.as_deref().map(read_file).transpose()?;
    merge(flags, file).map_err(all)
}

fn read_file(path: &Path) -> anyhow::Result<Typed> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    parse(&path.display().to_string(), &text).map_err(all)
}

/// All mistakes, one per line, behind one word on what they are in.
fn all(errors: Vec<ConfigError>) -> anyhow::Error {
    let lines: Vec<String> = errors.iter().map(|e| format!("  {e}")).collect();
    anyhow!("the configuration has {} mistake(s):\n{}", errors.len(), lines.join("\n"))
}

fn write(config: &Config, path: &Path) -> anyhow::Result<()> {
    let yaml = print::to_yaml(config).context("write the configuration as YAML")?;
    if let Err(error) = std::fs::write(path, yaml) {
        bail!("cannot write {}: {error}", path.display());
    }
    println!("wrote {}", path.display());
    Ok(())
}
