//! The `portway` binary and its subcommands. Called as `kube-proxy`, it runs `portway proxy`.

mod cleanup;
mod controller;
mod proxy;
mod relay;

use clap::{Parser, Subcommand};
use portway_proxy::config::{ProxyFlags, normalize_args};
use portway_serve::{LogFormat, logging};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Kubernetes Services on a node: a drop-in kube-proxy
#[derive(Debug, Parser)]
#[command(name = "portway", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the node agent: a drop-in kube-proxy
    #[command(disable_version_flag = true)]
    Proxy(ProxyFlags),
    /// Run the endpoint controllers: EndpointSlices and Endpoints objects from Services and Pods
    ///
    /// In place of those of kube-controller-manager, which is told so with
    /// --controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller. Several
    /// processes may run: one of them leads and writes, the others wait.
    #[command(args_override_self = true)]
    Controller(Box<portway_controllers::Options>),
    /// Remove the objects that Portway or kube-proxy created in this network namespace
    ///
    /// In every mode: the nftables tables `portway` and `kube-proxy`, the KUBE- chains of iptables and the rules that
    /// jump to them (in both variants), ipvs servers, their sets and the device kube-ipvs0, and the relay process of
    /// the userspace mode, which ends after its last connection.
    ///
    /// Open connections stay open as long as the node has another NAT rule, as most network plugins create one;
    /// connections through ipvs end with their virtual servers. To keep all connections, change the proxy mode instead.
    ///
    /// Rules, chains and tables of other programs and of the kubelet are not changed.
    Cleanup(cleanup::Flags),
    /// Relay the connections of the userspace mode; started by the agent
    #[command(hide = true)]
    Relay(relay::Flags),
}

fn main() -> ExitCode {
    // Also when the main thread panics: the log lines before a panic explain it.
    let _flush = FlushLog;
    let arguments = portway_arguments(std::env::args_os().collect());
    let format = log_format(&arguments);
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(message) => {
            match format {
                LogFormat::Json if message.use_stderr() => {
                    logging::print_last(message.to_string().trim_end().to_owned(), format);
                }
                _ => _ = message.print(),
            }
            // As kube-proxy: 1 for a mistake in the flags, where clap has 2.
            return if message.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let result = match cli.command {
        Command::Proxy(flags) => proxy::run(flags),
        Command::Controller(options) => controller::run(*options),
        Command::Cleanup(flags) => cleanup::run(&flags),
        Command::Relay(flags) => relay::run(&flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::print_last(format!("portway: {}", with_causes(&error)), format);
            ExitCode::FAILURE
        }
    }
}

/// The message of an error with those of its causes. Many messages have their cause in them already.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The format that the arguments ask for; needed before they are parsed, for mistakes in them.
fn log_format(arguments: &[OsString]) -> LogFormat {
    let pairs = arguments.iter().zip(arguments.iter().skip(1).map(Some).chain([None]));
    let is_json = |(argument, next): (&OsString, Option<&OsString>)| {
        argument == "--logging-format=json"
            || argument == "--logging-format" && next.is_some_and(|next| next == "json")
    };
    if pairs.into_iter().any(is_json) { LogFormat::Json } else { LogFormat::Text }
}

/// Writes the queued log lines when it is dropped.
struct FlushLog;

impl Drop for FlushLog {
    fn drop(&mut self) {
        logging::flush();
    }
}

/// The arguments in the form that `portway` parses: `kube-proxy …` becomes `portway proxy …`.
fn portway_arguments(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let Some(program) = arguments.next() else { return vec!["portway".into()] };
    let name = Path::new(&program).file_name().unwrap_or_default().to_owned();
    let mut rest: Vec<OsString> = arguments.collect();
    if name == "kube-proxy" {
        rest.insert(0, "proxy".into());
    }
    if rest.first().is_some_and(|first| first == "proxy") {
        let flags = normalize_args(rest.split_off(1));
        rest.extend(flags);
    }
    rest.insert(0, "portway".into());
    rest
}
