//! The boundary to the kernel, which here is a program: `iptables-restore` and `iptables-save`.
//!
//! No shell is in between. A script goes through a pipe, so that nothing is committed should either side die: the
//! tool makes a table's changes at its `COMMIT`, all or none.

use crate::chains::{Chain, Table};
pub use crate::failure::Failure;
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

/// Writes a script, and returns its number of transactions.
pub type Writer<'w> = dyn FnMut(&mut dyn Write) -> io::Result<usize> + 'w;

/// The kernel, as far as the engine needs it. The real one is [`Tool`]; [`crate::fake::Fake`] stands in for it.
pub trait Kernel: Tracker {
    /// Lists all tables, line by line.
    fn save(&mut self, each: &mut dyn FnMut(&str)) -> Result<(), Failure>;
    /// Runs a script; each table's part is applied as a whole or not at all.
    fn restore(&mut self, write: &mut Writer<'_>) -> Result<(), Failure>;
    /// Whether a long script should begin with a look at the whole table.
    fn looks_at_all(&self) -> bool;
    /// The chains that rules of this one lead to, if they can be had without the tool.
    fn jumps(&mut self, table: Table, chain: &Chain) -> Option<Vec<String>>;
    /// The rules of some chains, with `-A` and the chain, if they can be had alone.
    fn show(&mut self, table: Table, chains: &[Chain]) -> Option<Vec<String>>;
    /// Creates a named counter; false if the kernel has none.
    fn count(&mut self, name: &str) -> bool;
    /// Deletes a named counter.
    fn uncount(&mut self, name: &str);
    /// Whether packets to 127.0.0.1 may be routed; `None` if that cannot be told.
    fn route_localnet(&mut self) -> Option<bool>;
    /// Sets that.
    fn set_route_localnet(&mut self, on: bool) -> io::Result<()>;
}

/// Seconds that the tool waits for the lock. The agent does not sync meanwhile.
const PATIENCE: &str = "5";
/// Transactions of the tool that are remembered, to tell them from others when the kernel announces them.
const REMEMBERED: usize = 256;

/// A span of generations in which the tool changed the ruleset.
#[derive(Clone, Copy, Debug)]
struct Span {
    after: u32,
    until: u32,
    process: u32,
    /// No other process can have made a commit in it.
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
    /// The kernel announces processes by the ids that this PID namespace has.
    pids_are_real: bool,
    /// The generation at the last listing.
    listed_at: Option<u32>,
    /// The sizes of the tables after the last change, and the socket that reads them (legacy).
    sizes: HashMap<Table, Option<xtables::TableInfo>>,
    watch: Option<xtables::Watch>,
}

impl Tool {
    /// The tools of a variant.
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
            pids_are_real: is_initial_pid_namespace(),
            listed_at: None,
            sizes: HashMap::new(),
            watch: None,
        })
    }

    /// Its variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether a transaction that the kernel announced was the tool's.
    pub fn made(&self, commit: &Commit) -> bool {
        let within = |s: &&Span| {
            // Generations wrap around.
            commit.generation.wrapping_sub(s.after).wrapping_sub(1) < s.until.wrapping_sub(s.after)
        };
        let by_tool = |s: &Span| commit.process.as_ref().is_some_and(|(pid, _)| *pid == s.process);
        self.spans.iter().filter(within).any(|s| if self.pids_are_real { by_tool(s) } else { s.exclusive })
    }

    /// Whether the tables have other sizes than after the last change. Not every change alters a size. Only legacy tables have sizes.
    pub fn has_other_sizes(&mut self) -> bool {
        self.variant == Variant::Legacy && self.sizes() != self.sizes
    }

    fn sizes(&mut self) -> HashMap<Table, Option<xtables::TableInfo>> {
        if self.watch.is_none() {
            self.watch = xtables::Watch::open(self.family == Family::V6).ok();
        }
        let Some(watch) = &mut self.watch else { return HashMap::new() };
        let size = |table: Table| (table, watch.info(table.as_str()).ok().flatten());
        Table::ALL.into_iter().map(size).collect()
    }

    /// Remembers the sizes of the tables.
    pub fn note_sizes(&mut self) {
        if self.variant == Variant::Legacy {
            self.sizes = self.sizes();
        }
    }

    /// Whether no other process made a commit while the tool ran.
    pub fn was_alone(&self) -> bool {
        let since_listing = |s: &Span| self.listed_at.is_none_or(|listed| listed == s.after);
        self.spans.iter().all(|s| s.exclusive) && self.spans.front().is_none_or(since_listing)
    }

    /// The ruleset's generation after the last listing or change, where there is one.
    pub fn known_generation(&self) -> Option<u32> {
        self.spans.back().map(|s| s.until).max(self.listed_at)
    }

    /// The ruleset's generation, where there is one.
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
        // A later change shows in the sizes, or in the generation.
        self.note_sizes();
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
        let arguments = ["--noflush", "-w", PATIENCE];
        let mut run = Run::start(&self.restore, &arguments, Stdio::piped(), Stdio::null())?;
        let process = run.id();
        // A tool that refuses the script closes the pipe; its message says why.
        let written = run.input().map(|input| {
            let mut input = BufWriter::with_capacity(1 << 16, input);
            write(&mut input).and_then(|sections| input.flush().map(|()| sections))
        });
        let finished = run.finish();
        if let (Some(after), Some(until)) = (before, self.generation()) {
            let sections = written.as_ref().and_then(|w| w.as_ref().ok()).copied().unwrap_or(0);
            let exclusive = until.wrapping_sub(after) as usize <= sections;
            self.spans.push_back(Span { after, until, process, exclusive });
            if self.spans.len() > REMEMBERED {
                self.spans.pop_front();
            }
        }
        self.note_sizes();
        finished?;
        match written {
            Some(Err(source)) => Err(Failure::Io { program: name(&self.restore), source }),
            _ => Ok(()),
        }
    }

    fn looks_at_all(&self) -> bool {
        self.variant == Variant::Nft
    }

    fn jumps(&mut self, table: Table, chain: &Chain) -> Option<Vec<String>> {
        if self.variant == Variant::Legacy {
            return None;
        }
        let family = self.nft_family();
        let leads = list::jump_targets(&mut self.socket, family, table.as_str(), &chain.to_string());
        leads.ok().map(|l| l.into_iter().flatten().collect())
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

    fn count(&mut self, name: &str) -> bool {
        nfacct::create(&mut self.socket, name).is_ok()
    }

    fn uncount(&mut self, name: &str) {
        // A counter that a rule uses cannot be deleted.
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

/// The kernel announces commits with process ids of the initial PID namespace, which has a fixed inode number
/// (`PROC_PID_INIT_INO`). In a container, commits are attributed by generations only.
fn is_initial_pid_namespace() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|m| m.ino() == 0xefff_fffc)
}
