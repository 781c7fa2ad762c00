//! Access to the kernel through the tool: `iptables-restore` and `iptables-save`, and netlink where that suffices.
//!
//! A script is written to the tool's standard input, without a shell. The tool applies the changes of a table at its
//! `COMMIT`, all or none, so a table whose `COMMIT` was not written is not changed if either process dies.

use crate::chains::{Chain, Fixed, Table};
pub use crate::failure::Failure;
use crate::is_proxy_chain;
use crate::run::{Run, name};
use crate::variant::{Tools, Variant};
use portway_flows::Tracker;
use portway_model::Family;
use portway_netlink::conntrack::{Filter, Flow};
use portway_netlink::nft::{self, Commit, list};
use portway_netlink::{Protocol, Result as NetlinkResult, Socket, nfacct, xtables};
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;

/// The sizes of legacy tables.
type Sizes = HashMap<Table, Option<xtables::TableInfo>>;

/// Whether one of these built-in chains of a table has no rule.
fn is_empty(info: &xtables::TableInfo, chains: &[Chain]) -> bool {
    let hooks = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    let number = |chain: &Chain| hooks.iter().position(|hook| *hook == chain.to_string());
    // A chain begins with its policy if it has no rules.
    chains.iter().filter_map(number).any(|hook| info.hooks[hook] == info.underflow[hook])
}

/// Writes a script, and returns its number of sections, each of which is one transaction.
pub type Writer<'w> = dyn FnMut(&mut dyn Write) -> io::Result<usize> + 'w;

/// The operations of a kernel that the engine uses. [`Tool`] is the real kernel, [`crate::fake::Fake`] one for tests.
pub trait Kernel: Tracker {
    /// Lists all tables. Calls `each` for every line.
    fn save(&mut self, each: &mut dyn FnMut(&str)) -> Result<(), Failure>;
    /// Runs a script; each table's part is applied as a whole or not at all.
    fn restore(&mut self, write: &mut Writer<'_>) -> Result<(), Failure>;
    /// Whether a long script has to list the whole table first: see [`crate::script::Script::list_table`].
    fn needs_listing(&self) -> bool;
    /// The chains that rules of this chain jump to; `None` if they cannot be listed without the tool.
    fn jumps(&mut self, table: Table, chain: &Chain) -> Option<Vec<String>>;
    /// The rules of these chains, each with `-A` and the chain; `None` if they cannot be listed separately.
    fn show(&mut self, table: Table, chains: &[Chain]) -> Option<Vec<String>>;
    /// Removes all chains of proxies, and the rules of built-in chains that jump to them, at once and without the tool, if
    /// there are more than `few` of them. Returns the number of chains; 0 if there are few, or the kernel refuses.
    fn remove_proxy_chains(&mut self, _few: usize) -> usize {
        0
    }
    /// Creates a named counter; false if that fails, because the kernel lacks nfacct.
    fn create_counter(&mut self, name: &str) -> bool;
    /// Deletes a named counter, unless a rule uses it.
    fn delete_counter(&mut self, name: &str);
    /// Whether the sysctl `route_localnet` is on; `None` if it cannot be read.
    fn route_localnet(&mut self) -> Option<bool>;
    /// Sets the sysctl `route_localnet`.
    fn set_route_localnet(&mut self, on: bool) -> io::Result<()>;
}

/// Chains in one batch, which has to fit the socket's send buffer.
const CHAINS_PER_BATCH: usize = 1000;
/// Seconds that the tool waits for the lock. The sync waits with it.
const LOCK_WAIT_SECONDS: &str = "5";
/// Runs of the tool that are recorded, to recognise their commits in the kernel's notifications.
const MAX_SPANS: usize = 256;

/// The generations of the ruleset before and after a run of the tool.
#[derive(Clone, Copy, Debug)]
struct Span {
    after: u32,
    until: u32,
    process: u32,
    /// No other process can have made a commit during the run.
    exclusive: bool,
}

/// The tool in this network namespace, for one family.
#[derive(Debug)]
pub struct Tool {
    variant: Variant,
    family: Family,
    save: PathBuf,
    restore: PathBuf,
    socket: Socket,
    spans: VecDeque<Span>,
    /// The process ids in the kernel's notifications are those of this process's PID namespace.
    sees_kernel_pids: bool,
    /// The generation at the last listing.
    listed_at: Option<u32>,
    /// The sizes of the tables after the last listing or change, and the socket that reads them (legacy).
    sizes: Sizes,
    watch: Option<xtables::InfoSocket>,
}

impl Tool {
    /// Opens the tools of a variant.
    pub fn open(tools: &Tools, family: Family) -> Result<Tool, Failure> {
        let (save, restore) = tools.programs(family)?;
        let program = restore.display().to_string();
        let socket = Socket::open(Protocol::Netfilter)
            .map_err(|e| Failure::Io { program, source: io::Error::other(e) })?;
        let variant = tools.variant;
        Ok(Tool {
            variant,
            family,
            save,
            restore,
            socket,
            spans: VecDeque::new(),
            sees_kernel_pids: is_initial_pid_namespace(),
            listed_at: None,
            sizes: HashMap::new(),
            watch: None,
        })
    }

    /// The variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether the tool made this commit.
    pub fn made_commit(&self, commit: &Commit) -> bool {
        let within = |s: &&Span| {
            // Generations wrap around.
            commit.generation.wrapping_sub(s.after).wrapping_sub(1) < s.until.wrapping_sub(s.after)
        };
        let by_tool = |s: &Span| commit.process.as_ref().is_some_and(|(pid, _)| *pid == s.process);
        self.spans.iter().filter(within).any(|s| if self.sees_kernel_pids { by_tool(s) } else { s.exclusive })
    }

    /// Whether the sizes of the tables differ from those after the last listing or change. Not every change alters a
    /// size. Only legacy tables have sizes.
    pub fn has_other_sizes(&mut self) -> bool {
        self.variant == Variant::Legacy && self.sizes() != self.sizes
    }

    /// Whether one of these built-in chains has no rule at all: another process has flushed it. Only of legacy tables.
    pub fn has_empty_chain(&mut self, table: Table, chains: &[Chain]) -> bool {
        let info = self.sizes().get(&table).copied().flatten();
        self.variant == Variant::Legacy && info.is_some_and(|info| is_empty(&info, chains))
    }

    fn sizes(&mut self) -> Sizes {
        if self.watch.is_none() {
            self.watch = xtables::InfoSocket::open(self.family == Family::V6).ok();
        }
        let Some(watch) = &mut self.watch else { return HashMap::new() };
        let size = |table: Table| (table, watch.info(table.as_str()).ok().flatten());
        Table::ALL.into_iter().map(size).collect()
    }

    /// Records the sizes of the tables.
    pub fn record_sizes(&mut self) {
        if self.variant == Variant::Legacy {
            self.sizes = self.sizes();
        }
    }

    /// Whether no other process made a commit while the tool ran, or between the listing and the tool's first run.
    pub fn was_only_writer(&self) -> bool {
        let since_listing = |s: &Span| self.listed_at.is_none_or(|listed| listed == s.after);
        self.spans.iter().all(|s| s.exclusive) && self.spans.front().is_none_or(since_listing)
    }

    /// The ruleset's generation after the last listing or change; `None` for legacy tables.
    pub fn known_generation(&self) -> Option<u32> {
        self.spans.back().map(|s| s.until).max(self.listed_at)
    }

    /// The ruleset's current generation; `None` for legacy tables.
    pub fn generation(&mut self) -> Option<u32> {
        (self.variant == Variant::Nft).then(|| list::generation(&mut self.socket).ok()).flatten()
    }

    pub(crate) fn nft_family(&self) -> nft::Family {
        match self.family {
            Family::V4 => nft::Family::Ipv4,
            Family::V6 => nft::Family::Ipv6,
        }
    }

    fn tracker(&mut self) -> portway_flows::Kernel<'_> {
        portway_flows::Kernel { v6: self.family == Family::V6, socket: &mut self.socket }
    }
}

impl Kernel for Tool {
    fn save(&mut self, each: &mut dyn FnMut(&str)) -> Result<(), Failure> {
        // Recorded before the listing, so that a change during it is detected.
        self.record_sizes();
        self.listed_at = self.generation();
        let mut run = Run::start(&self.save, &[], Stdio::null(), Stdio::piped())?;
        let mut read = Ok(());
        if let Some(output) = run.output() {
            let mut reader = BufReader::with_capacity(1 << 16, output);
            let mut line = Vec::new();
            loop {
                line.clear();
                match reader.read_until(b'\n', &mut line) {
                    Ok(0) => break,
                    Ok(_) => each(String::from_utf8_lossy(&line).trim_end_matches('\n')),
                    Err(e) => {
                        read = Err(e);
                        break;
                    }
                }
            }
        }
        run.finish()?;
        read.map_err(|source| Failure::Io { program: name(&self.save), source })
    }

    fn restore(&mut self, write: &mut Writer<'_>) -> Result<(), Failure> {
        let before = self.generation();
        let arguments = ["--noflush", "-w", LOCK_WAIT_SECONDS];
        let mut run = Run::start(&self.restore, &arguments, Stdio::piped(), Stdio::null())?;
        let process = run.id();
        // A tool that refuses the script closes the pipe. Its message has the reason.
        let written = run.input().map(|input| {
            let mut input = BufWriter::with_capacity(1 << 16, input);
            write(&mut input).and_then(|sections| input.flush().map(|()| sections))
        });
        let finished = run.finish();
        if let (Some(after), Some(until)) = (before, self.generation()) {
            let sections = written.as_ref().and_then(|w| w.as_ref().ok()).copied().unwrap_or(0);
            let exclusive = until.wrapping_sub(after) as usize <= sections;
            self.spans.push_back(Span { after, until, process, exclusive });
            if self.spans.len() > MAX_SPANS {
                self.spans.pop_front();
            }
        }
        self.record_sizes();
        finished?;
        match written {
            Some(Err(source)) => Err(Failure::Io { program: name(&self.restore), source }),
            _ => Ok(()),
        }
    }

    fn needs_listing(&self) -> bool {
        self.variant == Variant::Nft
    }

    fn jumps(&mut self, table: Table, chain: &Chain) -> Option<Vec<String>> {
        if self.variant == Variant::Legacy {
            return None;
        }
        let family = self.nft_family();
        let jumps = list::jumps(&mut self.socket, family, table.as_str(), &chain.to_string());
        jumps.ok().map(|jumps| jumps.into_iter().filter_map(|jump| jump.to).collect())
    }

    fn show(&mut self, table: Table, chains: &[Chain]) -> Option<Vec<String>> {
        if self.variant == Variant::Legacy {
            return None;
        }
        let mut run = Run::start(&self.restore, &["--noflush"], Stdio::piped(), Stdio::piped()).ok()?;
        let mut script = format!("*{table}\n");
        chains.iter().for_each(|chain| script += &format!("-S {chain}\n"));
        run.input()?.write_all(format!("{script}COMMIT\n").as_bytes()).ok()?;
        let mut text = String::new();
        run.output()?.read_to_string(&mut text).ok()?;
        run.finish().ok()?;
        Some(text.lines().map(str::to_owned).collect())
    }

    fn remove_proxy_chains(&mut self, few: usize) -> usize {
        if self.variant == Variant::Legacy {
            return 0;
        }
        let mut removed = 0;
        for table in Table::ALL {
            match self.remove_proxy_chains_of(table, few) {
                Ok(count) => removed += count,
                Err(error) => tracing::debug!(%table, %error, "the chains could not be removed at once"),
            }
        }
        removed
    }

    fn create_counter(&mut self, name: &str) -> bool {
        nfacct::create(&mut self.socket, name).is_ok()
    }

    fn delete_counter(&mut self, name: &str) {
        // The kernel does not delete a counter that a rule uses.
        nfacct::delete(&mut self.socket, name).ok();
    }

    fn route_localnet(&mut self) -> Option<bool> {
        let text = std::fs::read_to_string(ROUTE_LOCALNET).ok()?;
        Some(text.trim() != "0")
    }

    fn set_route_localnet(&mut self, on: bool) -> io::Result<()> {
        std::fs::write(ROUTE_LOCALNET, if on { "1" } else { "0" })
    }
}

impl Tool {
    /// Removes the chains of proxies from one table: first the jumps to them, so that no packet enters them, then their
    /// rules, then the chains. A chain to which a rule of another program jumps makes the kernel refuse.
    fn remove_proxy_chains_of(&mut self, table: Table, few: usize) -> NetlinkResult<usize> {
        let (family, table) = (self.nft_family(), table.as_str());
        let chains = list::chains(&mut self.socket, family, table)?;
        // KUBE-FIREWALL may be the kubelet's.
        let is_removable = |name: &str| is_proxy_chain(name) && name != Fixed::Firewall.as_str();
        let proxy: Vec<&str> = chains.iter().map(|chain| &*chain.name).filter(|n| is_removable(n)).collect();
        if proxy.len() <= few {
            return Ok(0);
        }
        let mut hooks = nft::Batch::new(family, table);
        for chain in chains.iter().filter(|chain| chain.hook.is_some()) {
            for jump in list::jumps(&mut self.socket, family, table, &chain.name)? {
                if jump.to.is_some_and(|to| is_removable(&to)) {
                    hooks.delete_rule(&chain.name, jump.handle);
                }
            }
        }
        hooks.commit(&mut self.socket)?;
        for remove in [nft::Batch::flush_chain, nft::Batch::delete_chain] {
            for part in proxy.chunks(CHAINS_PER_BATCH) {
                let mut batch = nft::Batch::new(family, table);
                part.iter().for_each(|name| remove(&mut batch, name));
                batch.commit(&mut self.socket)?;
            }
        }
        Ok(proxy.len())
    }
}

const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

impl Tracker for Tool {
    fn flows(&mut self, filter: Filter) -> NetlinkResult<Vec<Flow>> {
        self.tracker().flows(filter)
    }

    fn delete_flow(&mut self, flow: &Flow) -> NetlinkResult<bool> {
        self.tracker().delete_flow(flow)
    }

    fn addresses(&mut self) -> NetlinkResult<Vec<IpAddr>> {
        self.tracker().addresses()
    }
}

/// Whether this process is in the initial PID namespace, which has a fixed inode number (`PROC_PID_INIT_INO`). The
/// kernel's notifications have process ids of that namespace; in a container, commits are attributed by generation
/// only.
fn is_initial_pid_namespace() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|m| m.ino() == 0xefff_fffc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_begins_with_its_policy_is_empty() {
        // nat has no FORWARD: both offsets are -1.
        let hooks = [0, 100, u32::MAX, 200, 300];
        let info = |underflow| xtables::TableInfo { entries: 9, size: 900, hooks, underflow };
        let chain = |name: &str| Chain::parse(name);
        let full = info([50, 150, u32::MAX, 250, 350]);
        let flushed = info([0, 150, u32::MAX, 250, 350]);
        for (name, expected) in [("PREROUTING", true), ("OUTPUT", false), ("KUBE-SERVICES", false)] {
            assert!(!is_empty(&full, &[chain(name)]), "{name}");
            assert_eq!(is_empty(&flushed, &[chain(name)]), expected, "{name}");
        }
    }
}
