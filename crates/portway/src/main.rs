//! Portway: the Kubernetes Service system in one binary. Called as `kube-proxy`, it is `portway proxy`.

mod cleanup;
mod proxy;
mod relay;

use clap::{Parser, Subcommand};
use portway_proxy::config::{ProxyFlags, normalize_args};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Everything between `kind: Service` and a packet that arrives.
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
    /// Remove everything Portway or kube-proxy made in this network namespace
    ///
    /// In whatever mode: the nftables tables `portway` and `kube-proxy`, the KUBE- chains of iptables and the rules that
    /// lead to them (in both variants), ipvs servers, their sets and the device kube-ipvs0, and the relay process of the
    /// userspace mode, which ends after its last connection.
    ///
    /// Connections that are open stay open as long as something else on the node has the kernel translate addresses, as
    /// most network plugins do; those through ipvs end with their servers. To lose none, switch the mode instead.
    ///
    /// Everybody else's rules, chains and tables are left alone, and so is what the kubelet made.
    Cleanup(cleanup::Flags),
    /// Relay the connections of the userspace mode; the agent starts this itself
    #[command(hide = true)]
    Relay(relay::Flags),
}

fn main() -> ExitCode {
    // Also if the main thread panics: the lines before that explain it.
    let _flush = FlushLog;
    let arguments = as_portway(std::env::args_os().collect());
    let result = match Cli::parse_from(arguments).command {
        Command::Proxy(flags) => proxy::run(flags),
        Command::Cleanup(flags) => cleanup::run(&flags),
        Command::Relay(flags) => relay::run(&flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            portway_serve::logging::flush();
            eprintln!("portway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the queued log lines when it is dropped.
struct FlushLog;

impl Drop for FlushLog {
    fn drop(&mut self) {
        portway_serve::logging::flush();
    }
}

/// What was typed, as `portway` wants it: `kube-proxy …` is `portway proxy …`.
fn as_portway(arguments: Vec<OsString>) -> Vec<OsString> {
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
