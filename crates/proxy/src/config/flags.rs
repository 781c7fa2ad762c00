//! The command line of `portway proxy`: kube-proxy's flags and a few of Portway's own.
//!
//! Flags of settings come from the table of settings. The flags here choose a task or a source to read from.

use super::domain::Config;
use super::settings::table;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use portway_config::{Typed, parse_bool};
use std::path::PathBuf;

const ABOUT: &str = "Runs the Kubernetes Service proxy on this node, in place of kube-proxy";

const LONG_ABOUT: &str = "\
Runs the Kubernetes Service proxy on this node, in place of kube-proxy

Watches Services and EndpointSlices and programs the kernel so that a Service's addresses reach its endpoints. Together with \
--config, only the flags for the host name, the API server's address and logging take effect; the log names the flags that \
are ignored.";

const EXAMPLES: &str = "\
Examples:
  On a node of a cluster, with the configuration that kubeadm writes:
      portway proxy --config=/var/lib/kube-proxy/config.conf --hostname-override=$(NODE_NAME)

  The same, by flags only:
      portway proxy --kubeconfig=/var/lib/kube-proxy/kubeconfig.conf --cluster-cidr=10.244.0.0/16

  Without any cluster, Services and EndpointSlices from files:
      portway proxy --manifests=./manifests --hostname-override=node-1

  Check a configuration file; print the effective configuration; remove every rule again:
      portway proxy --config=config.yaml --check-config
      portway proxy --cluster-cidr=10.244.0.0/16 --write-config-to=/dev/stdout
      portway proxy --cleanup";

/// A command line as typed.
#[derive(Clone, Debug, Default)]
pub struct ProxyFlags {
    /// Flags without a setting.
    pub run: RunFlags,
    /// Flags of settings.
    pub(super) settings: Typed,
}

/// Flags without a setting: they choose a task or a source to read from.
#[derive(Clone, Debug, Default, Args)]
pub struct RunFlags {
    /// The configuration file, a KubeProxyConfiguration in YAML or JSON; changes are applied while running.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub config: Option<PathBuf>,
    /// Write the effective configuration to this file and exit.
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub write_config_to: Option<PathBuf>,
    /// Check flags and configuration file, and exit: with 1 if they have a mistake, unknown and duplicate fields included.
    #[arg(long, help_heading = "Single tasks", value_parser = parse_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pub check_config: Option<bool>,
    /// Take Services, EndpointSlices, Nodes and ServiceCIDRs from the manifests in this directory, not from an API server.
    #[arg(long, value_name = "DIR", help_heading = "Configuration")]
    pub manifests: Option<PathBuf>,
    /// Remove all rules of Portway and of kube-proxy, in every mode, and exit.
    #[arg(long, help_heading = "Single tasks", value_parser = parse_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pub cleanup: Option<bool>,
    /// Do the work that needs full privileges, and exit; CAP_NET_ADMIN is then sufficient to run.
    #[arg(long, help_heading = "Single tasks", value_parser = parse_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pub init_only: Option<bool>,
    /// Print the version and exit.
    #[arg(long, help_heading = "Single tasks", value_parser = parse_version, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "true|raw")]
    pub version: Option<VersionFlag>,
}

/// The value of `--version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionFlag {
    /// Print the name and the version, and exit.
    Print,
    /// The same, with the name of the program.
    Raw,
    /// Run. `false`, or the version that kube-proxy is to report (`v1.36.0`), which has no effect here.
    Run,
}

fn parse_version(text: &str) -> Result<VersionFlag, String> {
    match text {
        "raw" => Ok(VersionFlag::Raw),
        text if text.starts_with('v') => Ok(VersionFlag::Run),
        text => Ok(if parse_bool(text)? { VersionFlag::Print } else { VersionFlag::Run }),
    }
}

impl Args for ProxyFlags {
    fn augment_args(command: Command) -> Command {
        RunFlags::augment_args(command)
            .args(table().args(&Config::defaults()))
            .args_override_self(true)
            .disable_version_flag(true)
            .about(ABOUT)
            .long_about(LONG_ABOUT)
            .after_help(EXAMPLES)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ProxyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let run = RunFlags::from_arg_matches(matches)?;
        Ok(ProxyFlags { run, settings: table().typed(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl CommandFactory for ProxyFlags {
    fn command() -> Command {
        Self::augment_args(Command::new("kube-proxy"))
    }

    fn command_for_update() -> Command {
        Self::command()
    }
}

impl Parser for ProxyFlags {}

#[cfg(test)]
mod tests;
