//! Resources of the relay process and of the kernel's TCP sockets, read from `/proc`.

use crate::agent_lab::AgentLab;
use libtest_mimic::Failed;
use portway_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// The relay process.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelayProcess(u32);

impl RelayProcess {
    /// The relay that the agent started.
    pub(super) fn of(lab: &mut AgentLab) -> Result<RelayProcess, Failed> {
        let line = lab.logged(&["started the relay process"])?;
        let number = line.rsplit_once("process=").and_then(|(_, number)| number.trim().parse().ok());
        Ok(RelayProcess(number.ok_or_else(|| format!("no process in {line:?}"))?))
    }

    /// The number of its sockets. Sockets may be opened and closed while they are counted. The kernel assigns the
    /// lowest free descriptor, and descriptors are counted in ascending order, so the count never exceeds the number
    /// open at some time.
    pub(super) fn sockets(self) -> Result<usize, String> {
        self.descriptors("socket:")
    }

    fn descriptors(self, kind: &str) -> Result<usize, String> {
        let all = fs::read_dir(format!("/proc/{}/fd", self.0))
            .map_err(|e| format!("cannot list the descriptors of the relay: {e}"))?;
        // A descriptor that was closed meanwhile is not counted.
        let is_kind =
            |path: &std::path::Path| fs::read_link(path).is_ok_and(|l| l.to_string_lossy().starts_with(kind));
        Ok(all.flatten().filter(|entry| is_kind(&entry.path())).count())
    }

    /// Sends a signal to the relay.
    pub(super) fn signal(self, signal: Signal) -> Result<(), String> {
        let process = i32::try_from(self.0).ok().and_then(Pid::from_raw).ok_or("not a process")?;
        kill_process(process, signal).map_err(|e| format!("cannot signal the relay: {e}"))
    }

    /// Its resident memory, in bytes.
    pub(super) fn resident(self) -> Result<u64, String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0))
            .map_err(|e| format!("cannot read the memory of the relay: {e}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kilobytes.ok_or("the relay has no VmRSS")? << 10)
    }
}

/// A file of `/proc/net` in a namespace.
fn proc_net(namespace: &Namespace, file: &str) -> Result<String, String> {
    namespace
        .run(|| fs::read_to_string(format!("/proc/thread-self/net/{file}")))
        .map_err(|e| format!("{file}: {e}"))
}

/// A counter of `TcpExt`.
pub(super) fn tcp_counter(namespace: &Namespace, name: &str) -> Result<u64, String> {
    let text = proc_net(namespace, "netstat")?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let found = names.split(' ').zip(values.split(' ')).find(|(n, _)| *n == name);
    found.and_then(|(_, value)| value.parse().ok()).ok_or_else(|| format!("no counter {name}"))
}

/// The memory of the buffers of all TCP sockets, in bytes. The kernel counts all namespaces together (`tcp_mem`).
pub(super) fn tcp_memory(namespace: &Namespace) -> Result<u64, String> {
    let text = proc_net(namespace, "sockstat")?;
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    let pages = line.split(' ').skip_while(|word| *word != "mem").nth(1).and_then(|n| n.parse::<u64>().ok());
    Ok(pages.ok_or_else(|| format!("no memory in {line:?}"))? * rustix::param::page_size() as u64)
}

/// The bytes in the send and receive queues of the TCP sockets of a namespace.
pub(super) fn queued(namespace: &Namespace) -> Result<u64, String> {
    const LISTENING: &str = "0A";
    let text = proc_net(namespace, "tcp")?;
    let queues = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace().skip(3);
        let (state, queues) = (words.next()?, words.next()?);
        let (tx, rx) = queues.split_once(':')?;
        let bytes = |hex| u64::from_str_radix(hex, 16).ok();
        if state == LISTENING { None } else { Some(bytes(tx)? + bytes(rx)?) }
    });
    Ok(queues.sum())
}
