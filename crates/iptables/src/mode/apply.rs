//! Making changes, and finding whose fault it is when one is refused.

use super::{Iptables, Trust, diagnose};
use crate::LOCALHOST_COUNTER;
use crate::chains::Table;
use crate::commit::{Failure, Kernel};
use crate::diff::{Transaction, World};
use crate::leftovers;
use crate::listing::{Listing, Seen, Wanted};
use crate::reconcile::reconcile;
use crate::script::{Origins, Script, Tally};
use portway_dataplane::{Drift, Error, Refused, Report, TableRules};
use portway_model::{PortPlan, Protocol, ServiceName, ServicePlan};
use std::time::Instant;

/// How many Services the tool may refuse in one sync, each for a reason of its own, before the fault is looked for
/// elsewhere.
const REFUSALS: usize = 16;

/// A transaction that failed, and whose fault that is.
struct Failed {
    failure: Failure,
    service: Option<ServiceName>,
    line: Option<String>,
}

impl<K: Kernel> Iptables<K> {
    /// Makes the changes, or repairs everything if that is what it takes.
    pub(super) fn apply(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), Error> {
        if self.trust == Trust::Sure {
            match self.commit(tx, report) {
                Ok(()) => return Ok(()),
                // The others have to wait anyway, and would only fail again.
                Err(Failed {
                    failure: failure @ (Failure::Locked { .. } | Failure::Missing { .. }), ..
                }) => {
                    return Err(diagnose(self.family, failure));
                }
                Err(failed) => {
                    report.partial_failures += 1;
                    // Not yet the Service's fault: what was to be deleted may be gone.
                    let why = failed.failure;
                    tracing::info!(family = %self.family, "a partial change failed, so everything is compared: {why}");
                }
            }
        }
        self.repair(report)
    }

    /// Makes the kernel hold what is wanted, whatever it holds. If somebody else was at it, what differed is reported.
    pub(super) fn repair(&mut self, report: &mut Report) -> Result<(), Error> {
        let (fresh, tampered) = (self.trust == Trust::Fresh, self.trust == Trust::Tampered || self.tampered);
        report.full = true;
        match self.reconcile(report) {
            Ok(drift) => {
                if tampered && !fresh {
                    report.drift = drift;
                }
                self.tampered = false;
                Ok(())
            }
            Err(e) => {
                if !fresh {
                    self.trust = Trust::Failed;
                }
                Err(e)
            }
        }
    }

    /// Lists the kernel, and makes it hold what is wanted. Services that the tool refuses are left out, one by one.
    fn reconcile(&mut self, report: &mut Report) -> Result<Drift, Error> {
        let mut first = None;
        for _ in 0..=REFUSALS {
            let (wanted, mut seen) = self.look()?;
            self.unroute_localnet(&seen);
            seen.shares_firewall |= leftovers::routes_localnet(&mut self.kernel, self.family);
            let (tx, drift) = reconcile(&seen, &wanted, self.world());
            let tx = self.without_opaque_hooks(&seen, tx);
            drop(seen);
            self.totals = wanted.totals;
            let drift = first.get_or_insert(drift).clone();
            match self.commit(&tx, report) {
                Ok(()) => return Ok(drift),
                Err(failed) => self.leave_out(failed, report)?,
            }
        }
        let last = self.refused.last().map_or("", |refused| &refused.reason);
        let words = format!("the rules of more than {REFUSALS} Services were refused, the last: {last}");
        Err(Error::Kernel { family: self.family, source: words.into() })
    }

    /// What is wanted, and what there is. At a first start there is mostly nothing, and then nothing to compare.
    fn look(&mut self) -> Result<(Wanted, Seen), Error> {
        if self.trust == Trust::Fresh {
            let seen = self.list(&Wanted::default())?;
            if seen.is_empty() {
                return Ok((Wanted::unseen(self.world()), seen));
            }
        }
        let wanted = Wanted::of(self.world());
        let seen = self.list(&wanted)?;
        Ok((wanted, seen))
    }

    pub(super) fn list(&mut self, wanted: &Wanted) -> Result<Seen, Error> {
        let mut listing = Listing::new(wanted);
        self.kernel.save(&mut |line| listing.line(line)).map_err(|e| diagnose(self.family, e))?;
        Ok(listing.finish())
    }

    /// In a table that the tool cannot show, our rules in everybody's chains are found in another way, lest they be
    /// added again and again.
    fn without_opaque_hooks(&mut self, seen: &Seen, mut tx: Transaction) -> Transaction {
        if !seen.opaque.is_empty() {
            tx.hook.retain(|hook| {
                let Some(to) = hook.rule.target().filter(|_| seen.opaque.contains(&hook.table)) else {
                    return true;
                };
                let to = to.to_string();
                !self.kernel.jumps(hook.table, &hook.chain).is_some_and(|jumps| jumps.contains(&to))
            });
        }
        tx
    }

    /// Writes a transaction. If a line is refused, whose it was comes back.
    fn commit(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), Failed> {
        if !tx.is_empty() {
            let mut origins = Origins::default();
            let mut tally = Tally::default();
            // Not by `self.world()`, which would borrow the kernel too.
            let world = World {
                family: self.family,
                settings: &self.settings,
                base: &self.base,
                plans: &self.plans,
                left_out: &self.left_out,
            };
            let look_at_all = self.kernel.looks_at_all();
            let restored = self.kernel.restore(&mut |out| {
                let mut script = Script::new(out, &mut origins);
                tx.print(world, look_at_all, &mut script)?;
                tally = script.finish()?;
                Ok(tally.sections)
            });
            if let Err(failure) = restored {
                self.trust = Trust::Failed;
                return Err(self.blame(failure, &origins, tx, look_at_all));
            }
            for (table, written) in Table::ALL.into_iter().zip(tally.rules) {
                let entry = report.tables.iter_mut().find(|t| t.table == table.as_str());
                match entry {
                    Some(entry) => entry.written += written,
                    None => report.tables.push(TableRules { table: table.as_str(), total: 0, written }),
                }
            }
            report.added += tally.rules.iter().sum::<usize>();
            report.removed += tx.delete.len() + tx.remove.values().map(Vec::len).sum::<usize>();
        }
        self.trust = Trust::Sure;
        Ok(())
    }

    /// Finds the Service behind a refused line.
    fn blame(&self, failure: Failure, origins: &Origins, tx: &Transaction, look_at_all: bool) -> Failed {
        let Failure::Refused { line: Some(number), .. } = &failure else {
            return Failed { failure, service: None, line: None };
        };
        let number = *number;
        let mut pick = Pick { number, at: 1, line: Vec::new() };
        let mut again = Origins::default();
        tx.print(self.world(), look_at_all, &mut Script::new(&mut pick, &mut again)).ok();
        let line = String::from_utf8_lossy(&pick.line).into_owned();
        Failed { failure, service: origins.of(number).cloned(), line: Some(line) }
    }

    /// Leaves a Service out whose rules were refused; anything else is an error.
    fn leave_out(&mut self, failed: Failed, report: &mut Report) -> Result<(), Error> {
        let Failed { failure, service, line } = failed;
        let words = match &line {
            Some(line) => format!("{failure}: `{line}`"),
            None => failure.to_string(),
        };
        match (service, &line) {
            (Some(service), Some(line)) => {
                self.left_out_since.get_or_insert_with(Instant::now);
                for other in self.likewise(&service, line) {
                    let reason = format!("it needs what the tool refused for {service}: {words}");
                    self.stand_in(other, reason);
                }
                self.stand_in(service, words);
                Ok(())
            }
            (None, Some(line)) if line.contains(LOCALHOST_COUNTER) && !self.cannot_count => {
                self.cannot_count = true;
                self.rebuild_base();
                report
                    .afterthoughts
                    .push(format!("connections to node ports at 127.0.0.1 are not counted: {words}"));
                Ok(())
            }
            (_, Some(_)) => Err(Error::Kernel { family: self.family, source: words.into() }),
            _ => Err(diagnose(self.family, failure)),
        }
    }

    /// Programs what a Service was before in its place, or nothing.
    fn stand_in(&mut self, service: ServiceName, reason: String) {
        // What was refused may be what stands in already.
        let before = if self.left_out.contains_key(&service) { None } else { self.before.remove(&service) };
        self.left_out.insert(service.clone(), before);
        self.refused.push(Refused { service, reason });
    }

    /// Services that would be refused for the same: what is missing is mostly the kernel's part of a match.
    fn likewise(&self, service: &ServiceName, line: &str) -> Vec<ServiceName> {
        let affected: fn(&PortPlan) -> bool = if line.contains(" -m recent ") {
            |port| port.affinity.is_some()
        } else if line.contains(" -p sctp ") {
            |port| port.protocol == Protocol::Sctp
        } else {
            return Vec::new();
        };
        let other = |plan: &&ServicePlan| plan.name != *service && !self.left_out.contains_key(&plan.name);
        let others = self.plans.values().filter(other).filter(|plan| plan.ports.iter().any(affected));
        others.map(|plan| plan.name.clone()).collect()
    }
}

/// Keeps one line of a script.
struct Pick {
    number: usize,
    at: usize,
    line: Vec<u8>,
}

impl std::io::Write for Pick {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            if *byte == b'\n' {
                self.at += 1;
            } else if self.at == self.number {
                self.line.push(*byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
