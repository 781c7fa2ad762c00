//! Applies transactions, and finds the Service whose rule the tool refused.

use crate::INVALID_COUNTER;
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

/// The number of Services whose rules the tool may refuse in one sync, before the sync fails.
const MAX_REFUSALS: usize = 16;

/// A failed transaction, with the refused line and the Service that it belongs to, if they are known.
struct FailedRestore {
    failure: Failure,
    service: Option<ServiceName>,
    line: Option<String>,
}

impl<K: Kernel> Engine<K> {
    /// Applies a transaction. If the tool refuses it, all rules have to be compared: a rule that the transaction
    /// deletes may be missing, which is not an error of the Service.
    pub(crate) fn commit_or_compare(
        &mut self,
        tx: &Transaction,
        report: &mut Report,
    ) -> Result<Committed, Error> {
        match self.restore(tx, report) {
            Ok(()) => Ok(Committed::Yes),
            // A comparison of all rules would fail for the same reason.
            Err(FailedRestore {
                failure: failure @ (Failure::Locked { .. } | Failure::Missing { .. }),
                ..
            }) => Err(failure.in_family(self.family)),
            Err(FailedRestore { failure, .. }) => {
                report.partial_failures += 1;
                tracing::info!(family = %self.family, "an incremental change failed; comparing all rules: {failure}");
                Ok(Committed::CompareAll)
            }
        }
    }

    /// Lists the rules in the kernel, and writes the differences from the wanted rules. Services whose rules the tool
    /// refuses are left out, one by one.
    pub(crate) fn reconcile_all(&mut self, fresh: bool, report: &mut Report) -> Result<Drift, Error> {
        // The counter may have been deleted too.
        self.rebuild_base();
        let mut first = None;
        for _ in 0..=MAX_REFUSALS {
            let (wanted, mut seen) = self.wanted_and_seen(fresh)?;
            if localnet::was_turned_on(&seen) {
                localnet::turn_off(&mut self.kernel);
            }
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
        let message =
            format!("iptables refused the rules of more than {MAX_REFUSALS} Services, the last with: {last}");
        Err(Error::kernel(self.family, message))
    }

    /// The wanted rules, and those in the kernel. At the first start the kernel usually has none: then no digests are
    /// computed.
    fn wanted_and_seen(&mut self, fresh: bool) -> Result<(Wanted, Seen), Error> {
        if fresh {
            let seen = self.list(&Wanted::default())?;
            if seen.is_empty() {
                return Ok((Wanted::without_digests(self.context()), seen));
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

    /// Removes hooks from the transaction that a table has though the tool cannot list it. They are found by the chains
    /// that its built-in chains jump to. Otherwise they would be added again at every sync.
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

    /// Runs the tool. If it refuses a line, the error has the Service of that line.
    fn restore(&mut self, tx: &Transaction, report: &mut Report) -> Result<(), FailedRestore> {
        if tx.is_empty() {
            return Ok(());
        }
        let mut origins = Origins::default();
        let mut tally = Tally::default();
        let (kernel, context) = self.kernel_and_context();
        let list_first = kernel.needs_listing();
        let restored = kernel.restore(&mut |out| {
            let mut script = Script::new(out, &mut origins);
            tx.print(context, list_first, &mut script)?;
            tally = script.finish()?;
            Ok(tally.sections)
        });
        if let Err(failure) = restored {
            return Err(self.attribute(failure, &origins, tx, list_first));
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

    /// Finds the refused line, and the Service that it belongs to.
    fn attribute(
        &self,
        failure: Failure,
        origins: &Origins,
        tx: &Transaction,
        list_first: bool,
    ) -> FailedRestore {
        let Failure::Refused { line: Some(number), .. } = &failure else {
            return FailedRestore { failure, service: None, line: None };
        };
        let number = *number;
        let mut picker = LinePicker { number, at: 1, line: Vec::new() };
        let mut again = Origins::default();
        tx.print(self.context(), list_first, &mut Script::new(&mut picker, &mut again)).ok();
        let line = String::from_utf8_lossy(&picker.line).into_owned();
        FailedRestore { failure, service: origins.of(number).cloned(), line: Some(line) }
    }

    /// Leaves out the Service whose rules were refused, or the counter of invalid packets. Any other failure is an error.
    fn leave_out(&mut self, failed: FailedRestore, report: &mut Report) -> Result<(), Error> {
        let FailedRestore { failure, service, line } = failed;
        let message = match &line {
            Some(line) => format!("{failure}: `{line}`"),
            None => failure.to_string(),
        };
        match (service, &line) {
            (Some(service), Some(line)) => {
                self.left_out_since.get_or_insert_with(Instant::now);
                for other in self.services_like(&service, line) {
                    let reason = format!("iptables refused a rule of the same kind for {service}: {message}");
                    self.refuse(other, reason);
                }
                self.refuse(service, message);
                Ok(())
            }
            (None, Some(line)) if line.contains(INVALID_COUNTER) && !self.cannot_count => {
                self.cannot_count = true;
                self.rebuild_base();
                report.warnings.push(format!("dropped invalid packets are not counted: {message}"));
                Ok(())
            }
            (_, Some(_)) => Err(Error::kernel(self.family, message)),
            _ => Err(failure.in_family(self.family)),
        }
    }

    /// Replaces the plan of a refused Service by the last accepted one, or by none.
    fn refuse(&mut self, service: ServiceName, reason: String) {
        // If the Service is left out already, the refused plan was the last accepted one.
        let accepted =
            if self.left_out.contains_key(&service) { None } else { self.programmed.remove(&service) };
        self.left_out.insert(service.clone(), accepted);
        self.refused.push(Refused { service, reason });
    }

    /// Other Services whose rules the tool would refuse for the same reason: they use the same match or protocol, which
    /// the kernel probably lacks.
    fn services_like(&self, service: &ServiceName, line: &str) -> Vec<ServiceName> {
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

/// A writer that keeps one line of a script.
struct LinePicker {
    number: usize,
    at: usize,
    line: Vec<u8>,
}

impl std::io::Write for LinePicker {
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
