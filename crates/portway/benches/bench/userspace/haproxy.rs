//! Debian's HAProxy, configured for this purpose: TCP mode, all cores, enough connections, long timeouts, no logs.
//! Options that are off by default, such as splicing, stay off.

use super::pods::{BULK, IDLE, SMALL};
use portway_lab::{Agent, LabHost, Log};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Connections that may be open besides those of the measurement.
const SPARE: usize = 100;

/// A running HAProxy; killed when dropped.
pub(super) struct HaProxy {
    process: Agent,
    config: PathBuf,
}

impl HaProxy {
    /// Starts HAProxy on a node, at the ports that the pods serve.
    pub(super) fn start(node: &LabHost, pods: &[Ipv4Addr], connections: usize) -> Result<HaProxy, String> {
        let config =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.haproxy.cfg", std::process::id()));
        // Writing into memory does not fail.
        let mut text = String::new();
        write_config(&mut text, node.ipv4(), pods, connections + SPARE).ok();
        std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
        let mut command = Command::new("haproxy");
        // In the foreground.
        command.arg("-db").arg("-f").arg(&config);
        let process = Agent::run(node, command).map_err(|e| e.to_string())?;
        Ok(HaProxy { process, config })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn log(&self) -> &Log {
        self.process.log()
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        std::fs::remove_file(&self.config).ok();
    }
}

fn write_config(
    text: &mut impl fmt::Write,
    node: Ipv4Addr,
    pods: &[Ipv4Addr],
    connections: usize,
) -> fmt::Result {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    writeln!(text, "global\n maxconn {connections}\n nbthread {threads}")?;
    writeln!(text, "defaults\n mode tcp\n balance roundrobin\n maxconn {connections}")?;
    writeln!(text, " timeout connect 5s\n timeout client 1h\n timeout server 1h")?;
    for port in [BULK, SMALL, IDLE] {
        writeln!(text, "listen port{port}\n bind {node}:{port}")?;
        for (n, pod) in pods.iter().enumerate() {
            writeln!(text, " server pod{n} {pod}:{port}")?;
        }
    }
    Ok(())
}
