//! Applying changes, and finding the Service whose rule the tool refused.

use crate::LOCALHOST_COUNTER;
use crate::chains::Table;
use crate::commit::{Failure, Kernel};
use crate::diff::Transaction;
use crate::engine::Engine;
use crate::listing::{Listing, Seen, Wanted};
use crate::localnet;
use crate::reconcile::reconcile;
use crate::script::{Origins, Script, Tally};
use portway_dataplane::{Committed, Drift, Error, Refused, Report, TableRules};
use portway_model::{PortPlan, Protocol, ServiceName, ServicePlan};
use std::time::Instant;

/// Services that the tool may refuse in one sync before the sync fails as a whole.
const REFUSALS: usize = 16;

/// A failed transaction, and the Service whose line was refused.
struct Failed {
    failure: Failure,
    service: Option<ServiceName>,
    line: Option<String>,
}

impl<K: Kernel> Engine<K> {
    /// Applies a transaction. If the tool refuses it, everything has to be compared: a rule that was to be deleted may be
    /// gone, which is not the fault of the Service.
    pub(crate) fn commit_or_compare(
        &mut self,
        tx: &Transaction,
        report: &mut Report,
    ) -> Result<Committed, Error> {
        match self.restore(tx, report) {
            Ok(()) => Ok(Committed::Yes),
            // Comparing everything would fail for the same reason.
            Err(Failed { failure: failure @ (Failure::Locked { .. } | Failure::Missing { .. }), .. }) => {
                Err(failure.in_family(self.family))
            }
            Err(Failed { failure, .. }) => {
                report.partial_failures += 1;
                tracing::info!(family = %self.family, "an incremental change failed; comparing all rules: {failure}");
                Ok(Committed::CompareAll)
            }
        }
    }

    /// Lists the kernel, and makes it hold the wanted rules. Services that the tool refuses are left out, one by one.
    pub(crate) fn reconcile_all(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        let mut first = None;
        for _ in 0..=REFUSALS {
            let (wanted, mut seen) = self.wanted_and_seen(fresh)?;
            self.turn_localnet_off(&seen);
            seen.shares_firewall |= localnet::is_on(&mut self.kernel, self.family);
            let (tx, drift) = reconcile(&seen, &wanted, self.context());
            let tx = self.without_opaque_hooks(&seen, tx);
            drop(seen);
            self.totals = wanted.totals;
            let drift = first.get_or_insert(drift).clone();
            match self.restore(&tx, report) {
                Ok(()) => return Ok(drift),
                Err(failed) => self.leave_out(failed, report)?,
            }
        }
        let last = self.refused.last().map_or("", |refused| &refused.reason);
        let message = format!("the rules of more than {REFUSALS} Services were refused, the last: {last}");
        Err(Error::kernel(self.family, message))
    }

    /// The wanted rules, and those of the kernel. At a first start the kernel mostly has none, and there is nothing to
    /// compare.
    fn wanted_and_seen(&mut self, fresh: bool) -> Result<(Wanted, Seen), Error> {
        if fresh {
            let seen = self.list(&Wanted::default())?;
            if seen.is_empty() {
                return Ok((Wanted::unseen(self.context()), seen));
            }
        }
        let wanted = Wanted::of(self.context());
        let seen = self.list(&wanted)?;
        Ok((wanted, seen))
    }

    pub(crate) fn list(&mut self, wanted: &Wanted) -> Result<Seen, Error> {
        let mut listing = Listing::new(wanted);
        self.kernel.save(&mut |line| listing.line(line)).map_err(|e| e.in_family(self.family))?;
        Ok(listing.finish())
    }

    /// In a table that the tool cannot show, hooks are found by the chains that built-in chains jump to; otherwise they would
    /// be added again and again.
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

    /// Runs the tool. If it refuses a line, the Service of that line comes back.
    fn restore(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), Failed> {
        if tx.is_empty() {
            return Ok(());
        }
        let mut origins = Origins::default();
        let mut tally = Tally::default();
        let (kernel, context) = self.kernel_and_context();
        let look_at_all = kernel.looks_at_all();
        let restored = kernel.restore(&mut |out| {
            let mut script = Script::new(out, &mut origins);
            tx.print(context, look_at_all, &mut script)?;
            tally = script.finish()?;
            Ok(tally.sections)
        });
        if let Err(failure) = restored {
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
        tx.print(self.context(), look_at_all, &mut Script::new(&mut pick, &mut again)).ok();
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
                    .warnings
                    .push(format!("connections to node ports at 127.0.0.1 are not counted: {words}"));
                Ok(())
            }
            (_, Some(_)) => Err(Error::kernel(self.family, words)),
            _ => Err(failure.in_family(self.family)),
        }
    }

    /// Programs the last accepted plan of a Service, or none.
    fn stand_in(&mut self, service: ServiceName, reason: String) {
        // What was refused may be what stands in already.
        let before = if self.left_out.contains_key(&service) { None } else { self.before.remove(&service) };
        self.left_out.insert(service.clone(), before);
        self.refused.push(Refused { service, reason });
    }

    /// Services that the tool would refuse for the same reason, mostly a match that the kernel lacks.
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
