//! The mode for one family: keeps the kernel's table equal to the one rendered from settings and plans.

use crate::commit::{Kernel, Netlink, diagnose};
use crate::diff::{Draft, Transaction, Uses, diff, diff_base};
use crate::drift::TableDetector;
use crate::eval::eval;
use crate::render;
use crate::rules::TableNames;
use crate::slots;
use crate::table::Table;
use crate::{KUBE_PROXY_TABLE, TABLE, holders, leftovers};
use portway_dataplane::trace::{Host, Packet, Trace};
use portway_dataplane::{
    Backend, Clear, Committed, Drift, Error, Families, FamilyProgram, Features, Location, Mode, OpenOptions,
    PlanChanges, Program, Report, Settings, State,
};
use portway_flows::Checks;
use portway_model::{Family, ServiceName, ServicePlan};
use portway_netlink::nft::{self, list};
use portway_xtables::ForwardPolicy;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

/// The nftables mode for one family.
#[derive(Debug)]
pub struct Nftables<K = Netlink> {
    kernel: K,
    family: nft::Family,
    names: TableNames,
    settings: Settings,
    plans: HashMap<ServiceName, ServicePlan>,
    uses: Uses,
    checks: Checks,
}

impl Nftables<Netlink> {
    /// Opens the mode for one family in this thread's network namespace.
    pub fn open(family: Family) -> Result<Nftables, Error> {
        let family = nft_family(family);
        let kernel = Netlink::open(family, TABLE)
            .map_err(|e| diagnose(family, e, || crate::probe::missing_feature(family)))?;
        let mut mode = Nftables::with_kernel(kernel, family);
        mode.check()?;
        Ok(mode)
    }

    /// Fails if the kernel has no nf_tables, or this process lacks the permission to use it. Changes nothing.
    fn check(&mut self) -> Result<(), Error> {
        let listed = list::tables(self.kernel.socket(), self.family);
        listed.map(drop).map_err(|e| self.kernel_error(e))
    }

    /// Fails if the kernel lacks a feature that the rules use. Changes nothing.
    fn check_features(&self) -> Result<(), Error> {
        let Some((feature, option)) = crate::probe::missing_feature(self.family) else { return Ok(()) };
        Err(Error::Unsupported { feature: feature.to_owned(), hint: format!("load or build {option}") })
    }

    /// The generation of the whole ruleset, which each commit of any process increases by one.
    pub fn generation(&mut self) -> Result<u32, Error> {
        list::generation(self.kernel.socket()).map_err(|e| self.kernel_error(e))
    }

    /// The netlink port of this mode's socket. The kernel's notifications name the port that a commit came from.
    pub fn port(&self) -> u32 {
        self.kernel.port()
    }
}

pub(crate) fn nft_family(family: Family) -> nft::Family {
    match family {
        Family::V4 => nft::Family::Ipv4,
        Family::V6 => nft::Family::Ipv6,
    }
}

impl<K: Kernel> Nftables<K> {
    /// Opens the mode on the given kernel.
    pub fn with_kernel(kernel: K, family: nft::Family) -> Nftables<K> {
        Nftables {
            kernel,
            family,
            names: TableNames::default(),
            settings: Settings::default(),
            plans: HashMap::new(),
            uses: Uses::default(),
            checks: Checks::default(),
        }
    }

    /// The desired table, normalized.
    pub fn wanted(&self) -> Table {
        let (mut table, _) = self.assemble();
        table.normalize();
        table
    }

    /// The desired table, and how many Services use each object in it.
    fn assemble(&self) -> (Table, Uses) {
        let mut table = render::base(&self.names, self.family, &self.settings);
        let mut uses = Uses::default();
        // Most elements are in this map. Reserving the room avoids copies while it grows.
        let ports = || self.plans.values().flat_map(|p| &p.ports);
        let endpoints = ports().map(|p| p.cluster.len() * p.frontends.len()).sum();
        table.elements.insert(self.names.endpoints.clone(), Vec::with_capacity(endpoints));
        for plan in self.plans.values() {
            let part = render::service(&self.names, self.family, plan);
            uses.count(&self.names.hairpin, &part);
            table.merge(part);
        }
        for (chain, rules) in render::dispatch(&self.names, self.family, table.sets.keys()) {
            table.chain(&chain, rules);
        }
        table.normalize_set(&self.names.hairpin);
        (table, uses)
    }

    /// The kernel that the mode writes to.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Stores the changed plans. The draft has their changes only if `in_sync`; otherwise it is empty.
    fn stage_changes(&mut self, changes: PlanChanges, in_sync: bool) -> Draft {
        let mut draft = Draft::default();
        for (name, mut new) in changes {
            let old = self.plans.remove(&name);
            if let (Some(old), Some(new)) = (&old, &mut new) {
                slots::keep_indices(old, new);
            }
            if old != new {
                if in_sync {
                    let rules = |plan: &Option<ServicePlan>| {
                        plan.as_ref()
                            .map(|p| render::service(&self.names, self.family, p))
                            .unwrap_or_default()
                    };
                    draft.change(&mut self.uses, &self.names.hairpin, &rules(&old), &rules(&new));
                }
                self.checks.change(&name, old.as_ref(), new.as_ref());
            }
            if let Some(new) = new {
                self.plans.insert(name, new);
            }
        }
        draft
    }

    /// The transaction for a draft and for changed settings.
    fn transaction(&mut self, draft: Draft, settings: &Settings) -> Transaction {
        let mut tx = draft.finish(&self.uses);
        let mut sets = tx.add_sets.iter().map(|s| &s.name).chain(&tx.delete_sets);
        if sets.any(|set| render::is_dispatch_set(set)) {
            for (chain, rules) in render::dispatch(&self.names, self.family, self.uses.sets()) {
                tx.replace_rules(&chain, rules);
            }
        }
        if *settings != self.settings {
            let base = |s: &Settings| {
                let mut table = render::base(&self.names, self.family, s);
                table.normalize();
                table
            };
            diff_base(&base(&self.settings), &base(settings), &mut tx);
        }
        tx
    }

    fn apply(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), Error> {
        if !tx.is_empty() {
            self.kernel.commit(tx).map_err(|e| self.kernel_error(e))?;
        }
        let (added, removed) = tx.size();
        report.added += added;
        report.removed += removed;
        Ok(())
    }

    fn kernel_error(&mut self, error: portway_netlink::Error) -> Error {
        diagnose(self.family, error, || self.kernel.missing_feature())
    }
}

impl<K: Kernel> Program for Nftables<K> {
    type Transaction = Transaction;

    fn family(&self) -> Family {
        match self.family {
            nft::Family::Ipv4 => Family::V4,
            nft::Family::Ipv6 => Family::V6,
        }
    }

    fn stage(
        &mut self,
        settings: &Settings,
        changes: PlanChanges,
        state: State,
        _: &mut Report,
    ) -> Result<Option<Transaction>, Error> {
        let in_sync = state == State::InSync;
        let draft = self.stage_changes(changes, in_sync);
        let tx = in_sync.then(|| self.transaction(draft, settings));
        if *settings != self.settings {
            self.settings = settings.clone();
        }
        Ok(tx)
    }

    fn commit(&mut self, transaction: &Transaction, report: &mut Report) -> Result<Committed, Error> {
        self.apply(transaction, report).map(|()| Committed::Yes)
    }

    fn reconcile(&mut self, _: bool, report: &mut Report) -> Result<Drift, Error> {
        let have = self.kernel.list().map_err(|e| self.kernel_error(e))?;
        let (mut want, uses) = self.assemble();
        if have.is_some() {
            want.normalize();
        }
        let (tx, drift) = diff(have.as_ref(), want);
        drop(have);
        self.uses = uses;
        self.apply(&tx, report)?;
        Ok(drift)
    }

    fn finish(&mut self, report: &mut Report) -> Result<(), Error> {
        self.checks.delete_stale(&mut self.kernel, &self.plans, &self.settings.node_ports, report);
        Ok(())
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        let have = self.kernel.list().map_err(|e| self.kernel_error(e))?;
        Ok(diff(have.as_ref(), self.wanted()).1)
    }
}

impl FamilyProgram for Nftables {
    const FAILURE_METRIC: &'static str = "sync_proxy_rules_nftables_sync_failures_total";

    fn locations(&self) -> Vec<Location> {
        // Both families: a table of a family that could not be opened is no leftover, since the rules of an earlier run
        // still forward traffic.
        Family::ALL.map(|family| leftovers::location(TABLE, family)).into()
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        Ok(eval(&self.wanted(), Program::family(self), packet, host))
    }
}

/// The nftables mode.
pub const MODE: &dyn Mode = &NftablesMode;

struct NftablesMode;

impl Mode for NftablesMode {
    fn name(&self) -> &'static str {
        "nftables"
    }

    fn features(&self) -> Features {
        Features { redirects: true, ..Features::default() }
    }

    fn check(&self) -> Result<(), Error> {
        Nftables::open(Family::V4)?.check_features()
    }

    fn open(&self, options: &OpenOptions<'_>) -> Result<Box<dyn Backend>, Error> {
        let tables = Families::open(options.families, Nftables::open, TableDetector::default())?;
        Ok(Box::new(ForwardPolicy::new(Box::new(tables), Instant::now())))
    }

    fn locations(&self) -> Vec<Location> {
        let tables = |family| [TABLE, KUBE_PROXY_TABLE].map(|table| leftovers::location(table, family));
        Family::ALL.into_iter().flat_map(tables).collect()
    }

    fn holders(&self) -> Vec<(IpAddr, ServiceName)> {
        holders::holders()
    }

    fn clear(&self, location: &Location, how: Clear, _: &Settings) -> Result<Vec<String>, Error> {
        let Some(family) = location.family else { return Ok(Vec::new()) };
        leftovers::clear(family, &location.id, how)
    }
}
