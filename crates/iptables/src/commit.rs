//! The door to the kernel, which in this mode is a program: `iptables-restore` and `iptables-save`.
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

/// Writes a script; how many transactions it makes comes back.
pub type Writer<'w> = dyn FnMut(&mut dyn Write) -> io::Result<usize> + 'w;

/// What the mode needs from a kernel. The real one is [`Tool`]; [`crate::fake::Fake`] stands in for it.
pub trait Kernel: Tracker {
    /// Lists all tables, line by line.
    fn save(&mut self, each: &mut dyn FnMut(&str)) -> Result<(), Failure>;
    /// Does what a script says, each table's part all or nothing.
    fn restore(&mut self, write: &mut Writer<'_>) -> Result<(), Failure>;
    /// Whether a long script should begin with a look at the whole table.
    fn looks_at_all(&self) -> bool;
    /// The chains that rules of this one lead to, if they can be had without the tool.
    fn jumps(&mut self, table: Table, chain: &Chain) -> Option<Vec<String>>;
    /// The rules of some chains, with `-A` and the chain, if they can be had alone.
    fn show(&mut self, table: Table, chains: &[Chain]) -> Option<Vec<String>>;
    /// Has the kernel count under this name; false if it cannot.
    fn count(&mut self, name: &str) -> bool;
    /// Forgets the count.
    fn uncount(&mut self, name: &str);
    /// Whether packets to 127.0.0.1 may be routed; `None` if that cannot be told.
    fn route_localnet(&mut self) -> Option<bool>;
    /// Has them routed, or not.
    fn set_route_localnet(&mut self, on: bool) -> io::Result<()>;
}

/// Seconds that the tool waits for the lock. Longer would only keep the agent from answering.
const PATIENCE: &str = "5";
/// How many of our own transactions are remembered, to tell them from others' when the kernel announces them.
const REMEMBERED: usize = 256;

/// A span of generations in which our tool changed the ruleset.
#[derive(Clone, Copy, Debug)]
struct Span {
    after: u32,
    until: u32,
    process: u32,
    /// Nobody else can have changed anything in it.
    ours_alone: bool,
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
    /// The kernel tells processes by the numbers that we know them by.
    pids_are_real: bool,
    /// The generation when we last looked.
    looked_at: Option<u32>,
    /// The tables' sizes after our last change, and what looks at them (legacy).
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
            looked_at: None,
            sizes: HashMap::new(),
            watch: None,
        })
    }

    /// Its variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether a transaction that the kernel announced was ours.
    pub fn made(&self, commit: &Commit) -> bool {
        let within = |s: &&Span| {
            // Generations wrap around.
            commit.generation.wrapping_sub(s.after).wrapping_sub(1) < s.until.wrapping_sub(s.after)
        };
        let by_us = |s: &Span| commit.process.as_ref().is_some_and(|(pid, _)| *pid == s.process);
        self.spans.iter().filter(within).any(|s| if self.pids_are_real { by_us(s) } else { s.ours_alone })
    }

    /// Whether the tables have other sizes than after our last change: they changed, though not everything that
    /// changes them shows. Only legacy tables have sizes.
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

    /// Notes the tables' sizes as they are now.
    pub fn note_sizes(&mut self) {
        if self.variant == Variant::Legacy {
            self.sizes = self.sizes();
        }
    }

    /// Whether nobody else changed anything while we did.
    pub fn was_alone(&self) -> bool {
        let since_looking = |s: &Span| self.looked_at.is_none_or(|looked| looked == s.after);
        self.spans.iter().all(|s| s.ours_alone) && self.spans.front().is_none_or(since_looking)
    }

    /// The ruleset's generation when we last looked or changed something, where there is one.
    pub fn known_generation(&self) -> Option<u32> {
        self.spans.back().map(|s| s.until).max(self.looked_at)
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
        // What changes from here on is seen by its size, or by this.
        self.note_sizes();
        self.looked_at = self.generation();
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
        // A tool that has read enough closes the pipe; why, it says itself.
        let written = run.input().map(|input| {
            let mut input = BufWriter::with_capacity(1 << 16, input);
            write(&mut input).and_then(|sections| input.flush().map(|()| sections))
        });
        let finished = run.finish();
        if let (Some(after), Some(until)) = (before, self.generation()) {
            let sections = written.as_ref().and_then(|w| w.as_ref().ok()).copied().unwrap_or(0);
            let ours_alone = until.wrapping_sub(after) as usize <= sections;
            self.spans.push_back(Span { after, until, process, ours_alone });
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
        let leads = list::leads(&mut self.socket, family, table.as_str(), &chain.to_string());
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
        // It is in use as long as a rule counts in it, and then it stays.
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

/// The kernel announces changes with the numbers that processes have in the first of all PID namespaces, whose own
/// number is fixed (`PROC_PID_INIT_INO`). In a container's, only generations can tell whose a change is.
fn is_initial_pid_namespace() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|m| m.ino() == 0xefff_fffc)
}
