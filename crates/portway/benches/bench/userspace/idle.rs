//! Memory of many idle connections: the growth of the proxy's resident memory.
//!
//! Each connection has transported a pod's greeting, so both of its sockets are established and the proxy has allocated
//! its buffers. The kernel's memory (sockets) is not included.

use super::pods::IDLE;
use super::testbed::{MeasuredProxy, Testbed};
use crate::Options;
use crate::cluster::memory;
use crate::guest::in_a_guest;
use crate::report::{Goal, Report};
use portway_lab::eventually;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

/// The time limit for a greeting.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// The time for the proxy to release buffers once connections are idle.
const QUIET: Duration = Duration::from_secs(2);
/// The time limit for closing all connections.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn measure(testbed: &Testbed, report: &mut Report) -> Result<(), String> {
    let count = testbed.connections;
    for (proxy, goal) in [(testbed.portway(), Some(Goal::AtMost(10.0))), (testbed.haproxy(), None)] {
        let grown =
            memory_growth(testbed, &proxy, count).map_err(|e| format!("through {}: {e}", proxy.name))?;
        let label = format!("userspace: memory for {count} idle connections, {}", proxy.name);
        report.add(&format!("userspace_idle_{}", proxy.name), label, grown, "MB");
        let each = grown * 1024.0 / count as f64;
        let label = format!("userspace: memory for each of them, {}", proxy.name);
        let key = format!("userspace_idle_each_{}", proxy.name);
        match goal {
            Some(goal) => report.add_with_goal(&key, label, each, "KB", goal),
            None => report.add(&key, label, each, "KB"),
        }
    }
    Ok(())
}

/// Measures in a guest, because a process of this machine may not open as many files. The memory of a process can be
/// measured there just as well.
pub(super) fn measure_in_guest(options: &Options, report: &mut Report) -> Result<(), String> {
    let count = format!("--idle-connections={}", options.idle_connections);
    in_a_guest(&["--only=idle".to_owned(), count], "idle", report)
}

/// The growth of the proxy's resident memory, in MB.
fn memory_growth(testbed: &Testbed, proxy: &MeasuredProxy, count: usize) -> Result<f64, String> {
    let resident = || memory(proxy.pid).map(|(now, _)| now).ok_or("the proxy has exited");
    let files_before = open_files().map_err(|e| e.to_string())?;
    let before = resident()?;
    let to = proxy.at(IDLE);
    let open = |n| greeted(to).map_err(|e| format!("connection {n} of {count}: {e}"));
    let streams = testbed.client().run(|| (1..=count).map(open).collect::<Result<Vec<_>, _>>())?;
    sleep(QUIET);
    let grown = resident()? - before;
    drop(streams);
    // The sockets of the pods belong to this process too, and are closed once the proxy has closed its own.
    let closed = || match open_files() {
        Ok(open) if open > files_before + 10 => Err(format!("{} files are still open", open - files_before)),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    };
    eventually(CLOSE_TIMEOUT, closed).map_err(|e| e.to_string())?;
    Ok(grown)
}

/// Connects and waits for the greeting.
fn greeted(to: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, WAIT_TIMEOUT)?;
    stream.set_read_timeout(Some(WAIT_TIMEOUT))?;
    match stream.read(&mut [0; 256])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(stream),
    }
}

fn open_files() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}
