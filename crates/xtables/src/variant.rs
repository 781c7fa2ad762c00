//! The two variants of iptables, and the choice between them.
//!
//! The kernel has both xtables (legacy) and nf_tables. The tool has a variant for each, and neither variant lists the
//! rules of the other. A node should use only one of them. The variant in use is detected by the chains of the kubelet
//! and of service proxies, and by the number of rules; if these do not decide, it is the variant of the host's
//! `iptables`.

use crate::chains::{Chain, Fixed, Table};
use crate::commit::Failure;
use portway_dataplane::Error;
use portway_model::Family;
use portway_netlink::nft::{self, list};
use portway_netlink::{Protocol, Socket, xtables};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A variant of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// `iptables-nft`, on nf_tables.
    Nft,
    /// `iptables-legacy`, on xtables.
    Legacy,
}

impl Variant {
    /// Both.
    pub const ALL: [Variant; 2] = [Variant::Nft, Variant::Legacy];

    fn infix(self) -> &'static str {
        match self {
            Variant::Nft => "-nft",
            Variant::Legacy => "-legacy",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Nft => "nf_tables",
            Variant::Legacy => "legacy",
        })
    }
}

/// Signs that one variant is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// The kubelet has chains in it. The kubelet creates them so that other programs can detect the variant.
    pub kubelet: bool,
    /// A service proxy has chains in it.
    pub proxy: bool,
    /// The number of chains and rules.
    pub entries: usize,
}

/// Chooses a variant by these signs. Returns the reason too.
pub fn choose(nft: Signs, legacy: Signs, default: Variant) -> (Variant, &'static str) {
    let by = |nft: bool, legacy: bool| match (nft, legacy) {
        (true, false) => Some(Variant::Nft),
        (false, true) => Some(Variant::Legacy),
        _ => None,
    };
    if let Some(variant) = by(nft.kubelet, legacy.kubelet) {
        return (variant, "the kubelet uses it");
    }
    if let Some(variant) = by(nft.proxy, legacy.proxy) {
        return (variant, "it has the chains of a service proxy");
    }
    match nft.entries.cmp(&legacy.entries) {
        std::cmp::Ordering::Greater => (Variant::Nft, "it has most of the host's rules"),
        std::cmp::Ordering::Less => (Variant::Legacy, "it has most of the host's rules"),
        std::cmp::Ordering::Equal => (default, "it is the variant of the host's iptables"),
    }
}

/// The programs of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// The variant.
    pub variant: Variant,
    /// The programs have no variant in their names, as on a host that has only this one.
    plain: bool,
}

impl Tools {
    /// Detects the variant in use. Returns its tools and the reason.
    pub fn detect() -> Result<(Tools, &'static str), Failure> {
        let installed: Vec<Tools> = Variant::ALL.into_iter().filter_map(Tools::of).collect();
        let [first, ..] = &installed[..] else {
            return Err(Failure::Missing { program: "iptables-restore".to_owned() });
        };
        if installed.len() == 1 {
            return Ok((first.clone(), "no other variant is installed"));
        }
        if let Some(legacy) = installed.iter().find(|t| t.variant == Variant::Legacy && !has_nf_tables()) {
            return Ok((legacy.clone(), "this kernel has no nf_tables"));
        }
        let default = plain_variant().unwrap_or(Variant::Nft);
        let (variant, why) = choose(nft_signs(), legacy_signs(), default);
        let tools = installed.iter().find(|t| t.variant == variant).unwrap_or(first);
        Ok((tools.clone(), why))
    }

    /// Detects the variant in use, and logs it.
    pub fn detect_and_log() -> Result<Tools, Error> {
        let (tools, why) = Tools::detect().map_err(|e| e.in_family(Family::V4))?;
        tracing::info!(variant = %tools.variant, why, "using iptables");
        Ok(tools)
    }

    /// The tools of a variant, if they are installed.
    pub fn of(variant: Variant) -> Option<Tools> {
        let tools = Tools { variant, plain: false };
        if tools.programs(Family::V4).is_ok() {
            return Some(tools);
        }
        (plain_variant() == Some(variant)).then_some(Tools { variant, plain: true })
    }

    /// The programs that save and restore a family's rules.
    pub fn programs(&self, family: Family) -> Result<(PathBuf, PathBuf), Failure> {
        let prefix = if family == Family::V6 { "ip6tables" } else { "iptables" };
        let infix = if self.plain { "" } else { self.variant.infix() };
        let find = |suffix: &str| {
            let program = format!("{prefix}{infix}-{suffix}");
            find(&program).ok_or(Failure::Missing { program })
        };
        Ok((find("save")?, find("restore")?))
    }
}

/// Whether the kernel has nf_tables with NAT, which the nf_tables variant needs.
fn has_nf_tables() -> bool {
    let Ok(mut socket) = Socket::open(Protocol::Netfilter) else { return true };
    // A scratch table is created and deleted in one transaction, so that no packet passes through it.
    let mut batch = nft::Batch::new(nft::Family::Ipv4, "portway-probe");
    batch.add_table();
    let hook = nft::Hook {
        kind: nft::ChainKind::Nat,
        point: nft::HookPoint::Postrouting,
        priority: 100,
        accept: true,
    };
    batch.add_chain(&nft::Chain { name: "probe".into(), hook: Some(hook) });
    batch.delete_table();
    // Any other error may be temporary, and does not mean that the kernel lacks nf_tables.
    let is_missing = |error: &portway_netlink::Error| {
        let errno = error.errno().map(rustix::io::Errno::from_raw_os_error);
        use rustix::io::Errno;
        [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT, Errno::NOENT]
            .into_iter()
            .any(|missing| errno == Some(missing))
    };
    !batch.commit(&mut socket).is_err_and(|error| is_missing(&error))
}

/// Searches a program in `PATH` and in the directories of system administration programs.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|directory| directory.join(program)).find(|p| is_program(p))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The variant of the host's `iptables-restore`.
fn plain_variant() -> Option<Variant> {
    let output =
        Command::new(find("iptables-restore")?).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Some(if text.contains("nf_tables") { Variant::Nft } else { Variant::Legacy })
}

fn add_chain(signs: &mut Signs, chain: &str) {
    signs.kubelet |= ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"].contains(&chain);
    signs.proxy |= Chain::parse(chain) == Chain::from(Fixed::Services);
}

const TABLES: [&str; 5] = ["nat", "filter", "mangle", "raw", "security"];

/// The signs in the tables of the nf_tables variant, read from the kernel without the tool.
fn nft_signs() -> Signs {
    let mut signs = Signs::default();
    let Ok(mut socket) = Socket::open(Protocol::Netfilter) else { return signs };
    for family in [nft::Family::Ipv4, nft::Family::Ipv6] {
        let tables = list::tables(&mut socket, family).unwrap_or_default();
        for table in tables.iter().filter(|t| TABLES.contains(&t.name.as_str())) {
            let chains = list::chains(&mut socket, family, &table.name).unwrap_or_default();
            chains.iter().for_each(|chain| add_chain(&mut signs, &chain.name));
            signs.entries += chains.iter().filter(|c| c.hook.is_none()).count();
            for chain in chains.iter().filter(|c| c.hook.is_some()) {
                let rules = list::jumps(&mut socket, family, &table.name, &chain.name);
                signs.entries += rules.map_or(0, |r| r.len());
            }
        }
    }
    signs
}

/// The signs in the legacy tables. Tables that were never used are not read, because that would create them.
fn legacy_signs() -> Signs {
    let mut signs = Signs::default();
    for family in Family::ALL {
        let v6 = family == Family::V6;
        for table in xtables::tables(v6) {
            let Ok(Some(info)) = xtables::info(v6, &table) else { continue };
            // Every built-in chain has one entry, and so has the end of the table.
            let hooks = info.hooks.iter().filter(|h| **h != u32::MAX).count() as u32;
            let entries = info.entries.saturating_sub(hooks_of(&table).unwrap_or(hooks) + 1);
            signs.entries += entries as usize;
            if entries > 0 && Table::parse(&table).is_some() {
                chains_of(family, &table).iter().for_each(|chain| add_chain(&mut signs, chain));
            }
        }
    }
    signs
}

/// Whether a variant has tables in a family, so that listing them does not create any.
pub fn is_used(variant: Variant, family: Family) -> bool {
    match variant {
        Variant::Legacy => !xtables::tables(family == Family::V6).is_empty(),
        Variant::Nft => {
            let nft = if family == Family::V6 { nft::Family::Ipv6 } else { nft::Family::Ipv4 };
            let tables = Socket::open(Protocol::Netfilter).and_then(|mut s| list::tables(&mut s, nft));
            tables.is_ok_and(|tables| tables.iter().any(|t| TABLES.contains(&t.name.as_str())))
        }
    }
}

/// The number of built-in chains of a table.
fn hooks_of(table: &str) -> Option<u32> {
    Some(match table {
        "nat" => 4,
        "filter" | "security" => 3,
        "mangle" => 5,
        "raw" => 2,
        _ => return None,
    })
}

/// The chains of a legacy table.
fn chains_of(family: Family, table: &str) -> Vec<String> {
    let tools = Tools { variant: Variant::Legacy, plain: false };
    let Ok((save, _)) = tools.programs(family) else { return Vec::new() };
    let output = Command::new(save).args(["-t", table]).stdin(Stdio::null()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let names = text.lines().filter_map(|l| l.strip_prefix(':')?.split(' ').next());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variant_in_use_is_chosen() {
        let nothing = Signs::default();
        let kubelet = Signs { kubelet: true, ..nothing };
        let proxy = Signs { proxy: true, entries: 900, ..nothing };
        let rules = |entries| Signs { entries, ..nothing };
        use Variant::{Legacy, Nft};
        let table = [
            (nothing, nothing, Legacy, Legacy, "no signs: the variant of the host's iptables"),
            (nothing, nothing, Nft, Nft, "no signs: the variant of the host's iptables"),
            (kubelet, proxy, Legacy, Nft, "the kubelet's chains come first"),
            (proxy, kubelet, Nft, Legacy, "the kubelet's chains come first"),
            (rules(1000), proxy, Nft, Legacy, "the proxy's chains come before the number of rules"),
            (rules(3), rules(40), Nft, Legacy, "more rules"),
            (rules(5), rules(4), Legacy, Nft, "more rules"),
        ];
        for (nft, legacy, default, expected, why) in table {
            assert_eq!(choose(nft, legacy, default).0, expected, "{why}");
        }
    }
}
