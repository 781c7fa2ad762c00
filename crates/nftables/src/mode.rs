//! The mode itself: plans in, kernel in step.

use crate::commit::{Kernel, Netlink, diagnose};
use crate::diff::{Draft, Transaction, Uses, diff, diff_base};
use crate::render;
use crate::rules::Names;
use crate::slots;
use crate::table::Table;
use portway_dataplane::{Dataplane, Drift, Error, Report, Settings};
use portway_flows::Checks;
use portway_model::{ServiceName, ServicePlan};
use portway_netlink::nft::{Family, list};
use std::collections::HashMap;

/// What was applied, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Nothing yet: the kernel may hold an earlier run's table.
    Fresh,
    /// The last commit succeeded, and nobody was seen to change anything since.
    Sure,
    /// Somebody changed our table.
    Tampered,
    /// A commit failed: some of what we want is not there.
    Failed,
}

/// The nftables mode for one family.
#[derive(Debug)]
pub struct Nftables<K = Netlink> {
    kernel: K,
    family: Family,
    names: Names,
    settings: Settings,
    plans: HashMap<ServiceName, ServicePlan>,
    uses: Uses,
    trust: Trust,
    /// Somebody changed our table, and it has not been repaired since.
    tampered: bool,
    checks: Checks,
}

impl Nftables<Netlink> {
    /// For one family, in this thread's network namespace.
    pub fn open(family: portway_model::Family) -> Result<Nftables, Error> {
        let family = nft_family(family);
        let kernel = Netlink::open(family, crate::TABLE)
            .map_err(|e| diagnose(family, e, || crate::probe::missing(family)))?;
        Ok(Nftables::with_kernel(kernel, family))
    }

    /// Whether we may change rules here, and the kernel has nf_tables: asks, and changes nothing.
    pub fn check(&mut self) -> Result<(), Error> {
        let listed = list::tables(self.kernel.socket(), self.family);
        listed.map(drop).map_err(|e| self.refused(e))
    }

    /// Whether the kernel has all that our rules take: tries, and changes nothing.
    pub fn check_features(&mut self) -> Result<(), Error> {
        self.check()?;
        let Some((feature, option)) = crate::probe::missing(self.family) else { return Ok(()) };
        Err(Error::Unsupported { feature: feature.to_owned(), hint: format!("load or build {option}") })
    }

    /// The generation of the whole ruleset: every change by anybody raises it by one.
    pub fn generation(&mut self) -> Result<u32, Error> {
        list::generation(self.kernel.socket()).map_err(|e| self.refused(e))
    }

    /// The port our changes come from: whoever else changes the table has another.
    pub fn port(&self) -> u32 {
        self.kernel.port()
    }
}

fn nft_family(family: portway_model::Family) -> Family {
    match family {
        portway_model::Family::V4 => Family::Ipv4,
        portway_model::Family::V6 => Family::Ipv6,
    }
}

impl<K: Kernel> Nftables<K> {
    /// With a kernel of the caller's choice.
    pub fn with_kernel(kernel: K, family: Family) -> Nftables<K> {
        Nftables {
            kernel,
            family,
            names: Names::default(),
            settings: Settings::default(),
            plans: HashMap::new(),
            uses: Uses::default(),
            trust: Trust::Fresh,
            tampered: false,
            checks: Checks::default(),
        }
    }

    /// The whole table as it should be, normalized.
    pub fn wanted(&self) -> Table {
        let (mut table, _) = self.assemble();
        table.normalize();
        table
    }

    /// The whole table as it should be, and how often each thing in it is used.
    fn assemble(&self) -> (Table, Uses) {
        let mut table = render::base(&self.names, self.family, &self.settings);
        let mut uses = Uses::default();
        // Most of it is one map: growing that by doubling would cost as much again.
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

    /// The kernel behind it.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Takes over settings and plans, and tells what has to change if all was as we knew it.
    fn absorb(
        &mut self,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Transaction {
        let mut draft = Draft::default();
        // At the first start everything is compared with the kernel, not with what we applied.
        let fresh = self.trust == Trust::Fresh;
        for (name, mut new) in changes {
            let old = self.plans.remove(&name);
            if let (Some(old), Some(new)) = (&old, &mut new) {
                slots::keep(old, new);
            }
            if fresh {
                self.checks.change(&name, old.as_ref(), new.as_ref());
            } else if old != new {
                let part = |plan: &Option<ServicePlan>| {
                    plan.as_ref().map(|p| render::service(&self.names, self.family, p)).unwrap_or_default()
                };
                draft.change(&mut self.uses, &self.names.hairpin, &part(&old), &part(&new));
                self.checks.change(&name, old.as_ref(), new.as_ref());
            }
            if let Some(new) = new {
                self.plans.insert(name, new);
            }
        }
        let mut tx = draft.finish(&self.uses);
        let mut sets = tx.add_sets.iter().map(|s| &s.name).chain(&tx.delete_sets);
        if sets.any(|set| render::is_switch(set)) {
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
            self.settings = settings.clone();
        }
        tx
    }

    /// Lists the kernel, and makes it hold what is wanted.
    fn reconcile(&mut self) -> Result<(Report, Drift), Error> {
        let have = self.kernel.list().map_err(|e| self.refused(e))?;
        let (mut want, uses) = self.assemble();
        if have.is_some() {
            want.normalize();
        }
        let (tx, drift) = diff(have.as_ref(), want);
        drop(have);
        self.uses = uses;
        self.commit(&tx)?;
        let (added, removed) = tx.size();
        Ok((Report { full: true, added, removed, ..Report::default() }, drift))
    }

    fn commit(&mut self, tx: &Transaction) -> Result<(), Error> {
        if !tx.is_empty()
            && let Err(e) = self.kernel.commit(tx)
        {
            self.trust = Trust::Failed;
            return Err(self.refused(e));
        }
        self.trust = Trust::Sure;
        Ok(())
    }

    fn refused(&mut self, error: portway_netlink::Error) -> Error {
        diagnose(self.family, error, || self.kernel.lacks())
    }
}

impl<K: Kernel> Dataplane for Nftables<K> {
    fn family(&self) -> portway_model::Family {
        match self.family {
            Family::Ipv4 => portway_model::Family::V4,
            Family::Ipv6 => portway_model::Family::V6,
        }
    }

    fn sync(
        &mut self,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Result<Report, Error> {
        let mut repaired = None;
        if matches!(self.trust, Trust::Tampered | Trust::Failed) {
            match self.reconcile() {
                Ok((report, drift)) => {
                    let tampered = std::mem::take(&mut self.tampered);
                    repaired = Some((report, if tampered { drift } else { Drift::default() }));
                }
                Err(e) => {
                    // Nobody tells us of these changes again: they are made with the next repair.
                    self.absorb(settings, changes);
                    self.trust = Trust::Failed;
                    return Err(e);
                }
            }
        }
        let first = self.trust == Trust::Fresh;
        let tx = self.absorb(settings, changes);
        let mut report = if first {
            self.reconcile()?.0
        } else {
            self.commit(&tx)?;
            let (added, removed) = tx.size();
            Report { added, removed, ..Report::default() }
        };
        if let Some((repair, drift)) = repaired {
            report.full = true;
            report.added += repair.added;
            report.removed += repair.removed;
            report.drift = drift;
        }
        self.checks.settle(&mut self.kernel, &self.plans, &self.settings.node_ports, &mut report);
        Ok(report)
    }

    fn distrust(&mut self) {
        if self.trust != Trust::Fresh {
            self.tampered = true;
        }
        if self.trust == Trust::Sure {
            self.trust = Trust::Tampered;
        }
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        let have = self.kernel.list().map_err(|e| self.refused(e))?;
        Ok(diff(have.as_ref(), self.wanted()).1)
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.trust = Trust::Fresh;
        self.kernel.delete().map(drop).map_err(|e| self.refused(e))
    }
}
