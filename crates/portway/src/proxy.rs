//! `portway proxy`: merges flags and configuration file, and runs the agent.

use anyhow::{Context, anyhow, bail};
use portway_proxy::agent::{self, Options};
use portway_proxy::config::{Config, ConfigError, ProxyFlags, VersionFlag, Warnings, print, read};
use portway_serve::logging;
use std::path::Path;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the agent, or the single action that a flag asks for: version, check, configuration file, cleanup, init.
pub(crate) fn run(flags: ProxyFlags) -> anyhow::Result<()> {
    let name = match flags.run.version {
        Some(VersionFlag::Print) => Some("Portway"),
        Some(VersionFlag::Raw) => Some("portway"),
        Some(VersionFlag::Run) | None => None,
    };
    if let Some(name) = name {
        println!("{name} {VERSION}");
        return Ok(());
    }
    let (config, warnings) = read_config(&flags)?;
    if flags.run.check_config == Some(true) {
        return check(&config, &warnings);
    }
    if let Some(path) = &flags.run.write_config_to {
        return write_config(&config, path);
    }
    logging::start(config.logging.format, config.logging.verbosity);
    raise_descriptor_limit();
    for flag in &warnings.ignored_flags {
        tracing::warn!("{flag}");
    }
    if flags.run.cleanup == Some(true) {
        return crate::cleanup::remove(&config.ipvs.exclude_cidrs);
    }
    if flags.run.init_only == Some(true) {
        return Ok(agent::prepare(&config)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let options = Options {
        manifests: flags.run.manifests.clone(),
        config,
        warnings,
        flags,
        version: VERSION,
        set_verbosity: logging::set_verbosity,
    };
    // Boxed because the future is large; it is allocated once and lives as long as the process.
    runtime.block_on(Box::pin(agent::run(options)))?;
    Ok(())
}

/// Raises the soft limit on file descriptors to the hard limit: the default of 1024 is for programs that use select().
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit on file descriptors could not be raised");
    }
}

fn read_config(flags: &ProxyFlags) -> anyhow::Result<(Config, Warnings)> {
    let file = flags.run.config.as_deref().map(read_file).transpose()?;
    let file = file.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    read(flags, file).map_err(list_errors)
}

/// The name and the text of the configuration file.
fn read_file(path: &Path) -> anyhow::Result<(String, String)> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    Ok((path.display().to_string(), text))
}

/// One error that lists all errors of the configuration, one per line.
fn list_errors(errors: Vec<ConfigError>) -> anyhow::Error {
    let lines: Vec<String> = errors.iter().map(|e| format!("  {e}")).collect();
    anyhow!("the configuration has {} mistake(s):\n{}", errors.len(), lines.join("\n"))
}

/// Prints what is wrong with a configuration that could be used, and fails if the file has unknown or duplicate fields.
fn check(config: &Config, warnings: &Warnings) -> anyhow::Result<()> {
    for flag in &warnings.ignored_flags {
        println!("{flag}");
    }
    if !warnings.unused.is_empty() {
        println!("without effect in Portway: {}", warnings.unused.join(", "));
    }
    if !warnings.mistakes.is_empty() {
        return Err(list_errors(warnings.mistakes.clone()));
    }
    println!("the configuration is valid, mode {}", config.mode.as_str());
    Ok(())
}

fn write_config(config: &Config, path: &Path) -> anyhow::Result<()> {
    let yaml = print::to_yaml(config).context("cannot print the configuration as YAML")?;
    if let Err(error) = std::fs::write(path, yaml) {
        bail!("cannot write {}: {error}", path.display());
    }
    println!("wrote {}", path.display());
    Ok(())
}
