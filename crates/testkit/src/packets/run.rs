//! Running the cases on a mode's fake node.

#[cfg(test)]
mod tests;

use super::{Case, FakeNode, Path, Row, Scenario, Step, cases, outcome, packet, text};
use crate::cluster::TestCluster;
use crate::harness::{self, Test};
use portway_dataplane::Settings;
use portway_dataplane::trace::Verdict;
use portway_model::{Family, ServiceName, ServicePlan};
use std::process::ExitCode;

/// A row in which a mode legitimately has another verdict than the table.
#[derive(Clone, Copy, Debug)]
pub struct Exception {
    /// The name of the case.
    pub case: &'static str,
    /// The row, as the table has it.
    pub row: Row,
    /// The verdict in this mode.
    pub verdict: &'static str,
    /// Why that verdict is correct in this mode.
    pub reason: &'static str,
}

/// The `main` of a mode's packet tests: all cases, the mode's own cases, and other tests of the mode.
pub fn main<N: FakeNode + 'static>(
    own: &[Case],
    exceptions: &'static [Exception],
    others: Vec<Test>,
) -> ExitCode {
    let mut all = tests::<N>(own, exceptions);
    all.extend(others);
    harness::run(all)
}

/// A test for every case of the tables and every case of the mode's own, in every family in which it is run. A test
/// that fails lists every row that had another verdict, with the path of the packet.
///
/// # Panics
/// If two cases have the same name, or an exception names a case that does not exist.
pub fn tests<N: FakeNode + 'static>(own: &[Case], exceptions: &'static [Exception]) -> Vec<Test> {
    let all = [&cases(), own].concat();
    for (i, case) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|c| c.name != case.name), "two cases have the name {}", case.name);
    }
    for Exception { case, .. } in exceptions {
        assert!(
            all.iter().any(|c| c.name == *case),
            "an exception names the case {case}, which does not exist"
        );
    }
    let in_families = all.into_iter().flat_map(|case| Family::ALL.map(|family| (case, family)));
    let run_in = in_families.filter(|(case, family)| !scenarios(case, *family).is_empty());
    let test = |(case, family): (Case, Family)| {
        Test::new(format!("{family}::{}", case.name), move || Ok(run::<N>(&case, family, exceptions)?))
    };
    run_in.map(test).collect()
}

fn scenarios(case: &Case, family: Family) -> Vec<Scenario> {
    (case.script)().into_iter().filter(|scenario| scenario.families.contains(&family)).collect()
}

fn run<N: FakeNode>(case: &Case, family: Family, exceptions: &[Exception]) -> Result<(), String> {
    let exceptions: Vec<&Exception> = exceptions.iter().filter(|e| e.case == case.name).collect();
    let mut wrong: Vec<String> = stale(case, &exceptions).collect();
    for Scenario { mut cluster, settings, steps, .. } in scenarios(case, family) {
        let mut running = Running { node: N::open(family), family, settings };
        wrong.extend(running.sync(cluster.all(family)).err());
        for step in steps {
            wrong.extend(running.step(&mut cluster, in_this_mode(step, &exceptions)).err());
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("\n{}: {family}:\n{}", case.name, wrong.join("\n"))) }
}

/// Errors about exceptions whose row is not in the table, or whose verdict is that of the table.
fn stale(case: &Case, exceptions: &[&Exception]) -> impl Iterator<Item = String> {
    let steps: Vec<Step> = (case.script)().into_iter().flat_map(|scenario| scenario.steps).collect();
    let real = move |e: &&&Exception| e.verdict != e.row.2 && steps.contains(&Step::Packet(e.row));
    exceptions
        .iter()
        .filter(move |e| !real(e))
        .map(|e| format!("the exception for {:?} is not needed", e.row))
}

/// The step with the verdict of this mode.
fn in_this_mode(step: Step, exceptions: &[&Exception]) -> Step {
    match step {
        Step::Packet(row) => {
            let verdict = exceptions.iter().find(|e| e.row == row).map_or(row.2, |e| e.verdict);
            Step::Packet((row.0, row.1, verdict))
        }
        other => other,
    }
}

/// A scenario that is being run.
struct Running<N> {
    node: N,
    family: Family,
    settings: Settings,
}

impl<N: FakeNode> Running<N> {
    fn step(&mut self, cluster: &mut TestCluster, step: Step) -> Result<(), String> {
        match step {
            Step::Packet((from, to, verdict)) => self.packet(from, to, verdict),
            Step::Connect { from, to, host } => self.connect(from, to, host),
            Step::Endpoints { service, hosts } => {
                cluster.apply_hosts(service, &hosts);
                self.sync(cluster.changes(self.family)).map_err(|e| format!("{hosts:?}: {e}"))
            }
        }
    }

    /// Syncs, and checks that there are no warnings, no refused Services and no drift.
    fn sync(&mut self, changes: Vec<(ServiceName, Option<ServicePlan>)>) -> Result<(), String> {
        let report = self.node.mode().sync(&self.settings, changes).map_err(|e| e.to_string())?;
        if !report.warnings.is_empty() || !report.refused.is_empty() {
            return Err(format!("{report:?}"));
        }
        let drift = self.node.mode().verify().map_err(|e| e.to_string())?;
        if drift.is_empty() { Ok(()) } else { Err(drift.to_string()) }
    }

    fn packet(&mut self, from: &str, to: &str, verdict: &str) -> Result<(), String> {
        let followed = self.node.follow(&packet(self.family, from, to));
        let found = outcome(self.family, &followed.verdicts);
        if found == verdict {
            return Ok(());
        }
        let path = followed.paths.first().map_or("", |path| &path.steps);
        Err(format!("{from} to {to}: {found}, not {verdict}\n{path}"))
    }

    /// Exactly one path must end at the endpoint: with several, the endpoint would be more likely than others.
    fn connect(&mut self, from: &str, to: &str, host: &str) -> Result<(), String> {
        let packet = packet(self.family, from, to);
        let paths = self.node.follow(&packet).paths;
        let ends_there = |(_, path): &(usize, &Path)| match &path.verdict {
            Verdict::Delivered { to, .. } => to.iter().any(|t| text::target(self.family, *t) == host),
            _ => false,
        };
        let fit: Vec<usize> = paths.iter().enumerate().filter(ends_there).map(|(n, _)| n).collect();
        match fit[..] {
            [n] if self.node.store_affinity(&packet, n) => Ok(()),
            [_] => Err(format!("{from} to {to} at {host}: no affinity was stored")),
            _ => Err(format!("{from} to {to}: {} paths end at {host}", fit.len())),
        }
    }
}
