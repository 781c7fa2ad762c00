//! The mode itself: plans in, routes and rules in step.

use crate::engine::Engine;
use crate::redirect::{self, Doors};
use portway_dataplane::{Dataplane, Drift, Error, Refused, Report, Settings, UserspaceSettings};
use portway_model::{Family, ServiceName, ServicePlan};
use std::collections::HashMap;
use std::sync::Arc;

/// The userspace mode for one family, over the rules of another mode.
#[derive(Debug)]
pub struct Userspace<R> {
    rules: R,
    engine: Arc<Engine>,
    plans: HashMap<ServiceName, ServicePlan>,
    /// Where the rules lead.
    doors: Option<Doors>,
    /// The rules lead to endpoints, for we are about to leave.
    left: bool,
}

impl<R: Dataplane> Userspace<R> {
    /// Over rules that nobody else writes to.
    pub fn new(rules: R, engine: Arc<Engine>) -> Userspace<R> {
        Userspace { rules, engine, plans: HashMap::new(), doors: None, left: false }
    }

    /// The rules.
    pub fn rules(&mut self) -> &mut R {
        &mut self.rules
    }

    /// The rules, to look at.
    pub fn the_rules(&self) -> &R {
        &self.rules
    }

    /// Has the kernel lead new connections to endpoints by itself: we are about to leave. Connections that are open go on
    /// as long as the engine does.
    pub fn farewell(&mut self, settings: &Settings) -> Result<Report, Error> {
        self.left = true;
        let all = self.plans.iter().map(|(name, plan)| (name.clone(), Some(redirect::to_endpoints(plan))));
        let all = all.collect();
        self.rules.sync(&settings_of_rules(settings), all)
    }

    /// What the rules are told about a Service.
    fn for_rules(&self, plan: &ServicePlan) -> ServicePlan {
        match &self.doors {
            Some(doors) if !self.left => redirect::to_doors(plan, doors),
            _ => redirect::to_endpoints(plan),
        }
    }

    /// Opens doors if there are none, or not at one of our addresses any more. Whether they are elsewhere now comes
    /// back.
    fn open_doors(&mut self, settings: &Settings, report: &mut Vec<String>) -> bool {
        let family = self.rules.family();
        let doors = self.engine.doors(family, &settings.userspace.addresses).unwrap_or_else(|error| {
            report.push(format!("no connections can be accepted, so the kernel leads them: {error}"));
            None
        });
        if doors.is_none() && self.plans.values().any(|p| p.family == family) && self.doors.is_some() {
            report.push(format!("this node has no {family} address, so the kernel leads its connections"));
        }
        std::mem::replace(&mut self.doors, doors) != doors
    }
}

/// The rules are not concerned with what is ours.
fn settings_of_rules(settings: &Settings) -> Settings {
    Settings { userspace: UserspaceSettings::default(), ..settings.clone() }
}

impl<R: Dataplane> Dataplane for Userspace<R> {
    fn family(&self) -> Family {
        self.rules.family()
    }

    fn sync(
        &mut self,
        settings: &Settings,
        changes: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> Result<Report, Error> {
        let family = self.family();
        self.engine.configure(&settings.userspace);
        let mut afterthoughts = Vec::new();
        let moved = self.open_doors(settings, &mut afterthoughts);
        let mut otherwise = Vec::new();
        let mut for_rules: HashMap<ServiceName, Option<ServicePlan>> = HashMap::new();
        for (name, plan) in changes {
            self.engine.change(&name, family, plan.as_ref());
            for_rules.insert(name.clone(), plan.as_ref().map(|plan| self.for_rules(plan)));
            if let Some(Err(reason)) = plan.as_ref().map(redirect::wants_header) {
                otherwise.push(Refused { service: name.clone(), reason });
            }
            match plan {
                Some(plan) => drop(self.plans.insert(name, plan)),
                None => drop(self.plans.remove(&name)),
            }
        }
        if moved {
            for (name, plan) in &self.plans {
                for_rules.entry(name.clone()).or_insert_with(|| Some(self.for_rules(plan)));
            }
        }
        let mut report = self.rules.sync(&settings_of_rules(settings), for_rules.into_iter().collect())?;
        self.engine.settle(family);
        report.otherwise.extend(otherwise);
        report.afterthoughts.extend(afterthoughts);
        Ok(report)
    }

    fn distrust(&mut self) {
        self.rules.distrust();
    }

    fn verify(&mut self) -> Result<Drift, Error> {
        self.rules.verify()
    }

    fn cleanup(&mut self) -> Result<(), Error> {
        self.rules.cleanup()
    }
}
