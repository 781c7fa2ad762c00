//! Memory of many idle connections: by how much the proxy's resident memory grows with them.
//!
//! Each has transported a pod's greeting, so both its halves are established and the proxy has allocated what it needs to
//! move bytes. The kernel's memory (sockets) is not included.

use super::pods::IDLE;
use super::stage::{Contender, Stage};
use crate::Options;
use crate::field::memory;
use crate::guest::in_a_guest;
use crate::report::{Goal, Report};
use portway_lab::eventually;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

/// How long a greeting may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the proxy has to release buffers once connections are quiet.
const QUIET: Duration = Duration::from_secs(2);
/// How long all connections may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn measure(stage: &Stage, report: &mut Report) -> Result<(), String> {
    let count = stage.connections;
    for (side, goal) in [(stage.portway(), Some(Goal::AtMost(10.0))), (stage.haproxy(), None)] {
        let grown = grown(stage, &side, count).map_err(|e| format!("through {}: {e}", side.name))?;
        let what = format!("userspace: memory for {count} idle connections, {}", side.name);
        report.add(&format!("userspace_idle_{}", side.name), what, grown, "MB");
        let each = grown * 1024.0 / count as f64;
        let what = format!("userspace: memory for each of them, {}", side.name);
        let key = format!("userspace_idle_each_{}", side.name);
        match goal {
            Some(goal) => report.judge(&key, what, each, "KB", goal),
            None => report.add(&key, what, each, "KB"),
        }
    }
    Ok(())
}

/// Measures in a guest, because this machine does not let a process open as many files. Memory of a process is measured as
/// well there.
pub(super) fn elsewhere(options: &Options, report: &mut Report) -> Result<(), String> {
    let count = format!("--idle-connections={}", options.idle_connections);
    in_a_guest(&["--only=idle".to_owned(), count], "idle", report)
}

/// By how many MB it grows.
fn grown(stage: &Stage, side: &Contender, count: usize) -> Result<f64, String> {
    let resident = || memory(side.pid).map(|(now, _)| now).ok_or("it is gone");
    let files_before = open_files().map_err(|e| e.to_string())?;
    let before = resident()?;
    let to = side.at(IDLE);
    let open = |n| greeted(to).map_err(|e| format!("connection {n} of {count}: {e}"));
    let streams = stage.client().run(|| (1..=count).map(open).collect::<Result<Vec<_>, _>>())?;
    sleep(QUIET);
    let grown = resident()? - before;
    drop(streams);
    // The pods' sockets are this process's as well, and close once the proxy has closed its own.
    let closed = || match open_files() {
        Ok(open) if open > files_before + 10 => Err(format!("{} are still open", open - files_before)),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    };
    eventually(CLOSE_TIMEOUT, closed).map_err(|e| e.to_string())?;
    Ok(grown)
}

fn greeted(to: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    match stream.read(&mut [0; 256])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(stream),
    }
}

fn open_files() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}
