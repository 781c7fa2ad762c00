//! CPU time and memory of a process together with its children.
//!
//! kube-proxy runs `nft`, `iptables-restore` and other tools for most of its work; in the modes that need tools, so
//! does Portway. What these use is part of what the proxy uses.

use crate::cluster::{cpu, memory};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How often CPU time is read while waiting for a process to become idle.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Without work for as long, a process is idle.
const IDLE_FOR: Duration = Duration::from_secs(3);
/// The CPU time that an idle process may use meanwhile, in seconds: timers, garbage collection.
const IDLE_CPU: f64 = 0.03;

/// CPU time in seconds: of the process, its children that have ended, and its children that run.
pub(super) fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(") ").next()?.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    // cutime and cstime, in clock ticks of 1/100 s (USER_HZ).
    let ended = (ticks(13)? + ticks(14)?) / 100.0;
    let running: f64 = children(pid).into_iter().filter_map(cpu_seconds).sum();
    Some(cpu(pid)? + ended + running)
}

/// Resident memory in MB, with the children that run: current and peak.
pub(super) fn megabytes(pid: u32) -> Option<(f64, f64)> {
    let own = memory(pid)?;
    let of_children = children(pid).into_iter().filter_map(megabytes);
    Some(of_children.fold(own, |sum, child| (sum.0 + child.0, sum.1 + child.1)))
}

/// Waits until a process and its children do no work any more; returns their CPU time so far, in seconds.
pub(super) fn wait_until_idle(pid: u32, timeout: Duration) -> Result<f64, String> {
    let deadline = Instant::now() + timeout;
    let read = || cpu_seconds(pid).ok_or("the process has ended");
    let (mut since, mut before) = (Instant::now(), read()?);
    loop {
        thread::sleep(SAMPLE_INTERVAL);
        let now = read()?;
        if now - before > IDLE_CPU {
            (since, before) = (Instant::now(), now);
        }
        if since.elapsed() >= IDLE_FOR {
            return Ok(now);
        }
        if Instant::now() >= deadline {
            return Err(format!("the process still works after {timeout:?}"));
        }
    }
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|c| c.parse().ok()).collect::<Vec<_>>())
        .collect()
}
