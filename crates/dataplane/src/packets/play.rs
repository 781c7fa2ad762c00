//! Playing the scripts on a mode's machine.

#[cfg(test)]
mod tests;

use super::{Case, Machine, Row, Scene, Step, cases, outcome, packet, words};
use crate::Settings;
use crate::packet::Verdict;
use crate::world::{World, endpoint};
use portway_model::{Family, ServiceName, ServicePlan};
use serde_json::{Value, json};

/// A row in which a mode ends elsewhere than the table says, and may.
#[derive(Clone, Copy, Debug)]
pub struct Differs {
    /// The name of the case.
    pub case: &'static str,
    /// The row, as the table has it.
    pub row: Row,
    /// What becomes of the packet in this mode.
    pub here: &'static str,
    /// Why that is right.
    pub why: &'static str,
}

/// One case in one family, ready to run.
pub struct Test {
    /// `IPv4::cluster_ips::…`.
    pub name: String,
    /// Runs it; an error tells of every row that went elsewhere, with the way it took.
    pub run: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

/// Every case of the table and of the mode's own, in every family in which it holds.
///
/// # Panics
/// If a name is there twice, or a difference is declared of a case that is not there.
pub fn tests<M: Machine + 'static>(
    machine: fn(Family) -> M,
    own: &[Case],
    differs: &'static [Differs],
) -> Vec<Test> {
    let all = [&cases(), own].concat();
    for (i, case) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|c| c.name != case.name), "two cases are called {}", case.name);
    }
    for Differs { case, .. } in differs {
        assert!(all.iter().any(|c| c.name == *case), "there is no case {case} to differ from");
    }
    let in_families = all.into_iter().flat_map(|case| Family::ALL.map(|family| (case, family)));
    let held = in_families.filter(|(case, family)| !scenes(case, *family).is_empty());
    held.map(|(case, family)| Test {
        name: format!("{family}::{}", case.name),
        run: Box::new(move || run(&case, family, machine, differs)),
    })
    .collect()
}

fn scenes(case: &Case, family: Family) -> Vec<Scene> {
    (case.script)().into_iter().filter(|scene| scene.families.contains(&family)).collect()
}

fn run<M: Machine>(
    case: &Case,
    family: Family,
    machine: fn(Family) -> M,
    differs: &[Differs],
) -> Result<(), String> {
    let differs: Vec<&Differs> = differs.iter().filter(|d| d.case == case.name).collect();
    let mut wrong: Vec<String> = stale(case, &differs).collect();
    for Scene { mut world, settings, steps, .. } in scenes(case, family) {
        let mut stage = Stage { machine: machine(family), family, settings };
        wrong.extend(stage.sync(world.all(family)).err());
        for step in steps {
            wrong.extend(stage.step(&mut world, here(step, &differs)).err());
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("\n{}: {family}:\n{}", case.name, wrong.join("\n"))) }
}

/// Differences from what the table does not say, or says too.
fn stale(case: &Case, differs: &[&Differs]) -> impl Iterator<Item = String> {
    let steps: Vec<Step> = (case.script)().into_iter().flat_map(|scene| scene.steps).collect();
    let real = move |d: &&&Differs| d.here != d.row.2 && steps.contains(&Step::Packet(d.row));
    differs.iter().filter(move |d| !real(d)).map(|d| format!("the table has no {:?} to differ from", d.row))
}

/// The step as it must be in this mode.
fn here(step: Step, differs: &[&Differs]) -> Step {
    match step {
        Step::Packet(row) => {
            let ends = differs.iter().find(|d| d.row == row).map_or(row.2, |d| d.here);
            Step::Packet((row.0, row.1, ends))
        }
        other => other,
    }
}

/// A machine at some moment of a scene.
struct Stage<M> {
    machine: M,
    family: Family,
    settings: Settings,
}

impl<M: Machine> Stage<M> {
    fn step(&mut self, world: &mut World, step: Step) -> Result<(), String> {
        match step {
            Step::Packet((from, to, ends)) => self.packet(from, to, ends),
            Step::Meets { from, to, place } => self.meets(from, to, place),
            Step::Endpoints { service, places } => {
                let endpoints: Vec<Value> = places.iter().map(|place| endpoint(place)).collect();
                world.apply_slice(service, json!({"name": "http", "port": 8080}), &endpoints);
                self.sync(world.changes(self.family)).map_err(|e| format!("{places:?}: {e}"))
            }
        }
    }

    /// A sync leaves nothing to be wished for.
    fn sync(&mut self, changes: Vec<(ServiceName, Option<ServicePlan>)>) -> Result<(), String> {
        let report = self.machine.mode().sync(&self.settings, changes).map_err(|e| e.to_string())?;
        if !report.afterthoughts.is_empty() || !report.refused.is_empty() {
            return Err(format!("{report:?}"));
        }
        let drift = self.machine.mode().verify().map_err(|e| e.to_string())?;
        if drift.is_empty() { Ok(()) } else { Err(drift.to_string()) }
    }

    fn packet(&mut self, from: &str, to: &str, ends: &str) -> Result<(), String> {
        let followed = self.machine.follow(&packet(self.family, from, to));
        let found = outcome(self.family, &followed.verdicts);
        if found == ends {
            return Ok(());
        }
        let way = followed.ways.first().map_or("", |way| &way.steps);
        Err(format!("{from} to {to}: {found}, not {ends}\n{way}"))
    }

    /// One way leads there, or the places would not be as likely as each other.
    fn meets(&mut self, from: &str, to: &str, place: &str) -> Result<(), String> {
        let packet = packet(self.family, from, to);
        let ways = self.machine.follow(&packet).ways;
        let leads = |(_, way): &(usize, &super::Way)| match &way.verdict {
            Verdict::Delivered { to, .. } => to.iter().any(|t| words::place(self.family, *t) == place),
            _ => false,
        };
        let fit: Vec<usize> = ways.iter().enumerate().filter(leads).map(|(n, _)| n).collect();
        match fit[..] {
            [n] if self.machine.remember(&packet, n) => Ok(()),
            [_] => Err(format!("{from} to {to} at {place}: nothing was remembered")),
            _ => Err(format!("{from} to {to}: {} ways lead to {place}", fit.len())),
        }
    }
}
