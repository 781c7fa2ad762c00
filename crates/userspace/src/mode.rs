//! The mode itself: plans in, routes and rules in step.

use crate::link::{Link, is_superseded};
use crate::redirect::{self, Doors};
use portway_dataplane::{Dataplane, Drift, Error, Refused, Report, Settings, UserspaceSettings};
use portway_model::{Family, ServiceName, ServicePlan};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The userspace mode for one family, over the rules of another mode.
#[derive(Debug)]
pub struct Userspace<R> {
    rules: R,
    link: Arc<Link>,
    /// The carrier that knows all plans.
    told: u64,
    plans: HashMap<ServiceName, ServicePlan>,
    /// Where the rules lead.
    doors: Option<Doors>,
    /// Where they led last.
    before: Option<Doors>,
    /// The rules lead to endpoints, for we are about to leave.
    left: bool,
    /// Nobody carries connections, since then.
    alone: Option<Instant>,
    /// A later release has taken over, and its rules are not to be touched.
    superseded: bool,
}

/// When to look for somebody who carries connections again.
const TRY_AGAIN: Duration = Duration::from_secs(5);

impl<R: Dataplane> Userspace<R> {
    /// Over rules that nobody else writes to.
    pub fn new(rules: R, link: Arc<Link>) -> Userspace<R> {
        Userspace {
            rules,
            link,
            told: 0,
            plans: HashMap::new(),
            doors: None,
            before: None,
            left: false,
            alone: None,
            superseded: false,
        }
    }

    /// Whether who carries connections has gone, or the address that it listens at.
    pub fn lost_its_carrier(&self) -> bool {
        let is_here = |doors: &Doors| std::net::UdpSocket::bind((doors.address, 0)).is_ok();
        let alone = self.alone.is_some_and(|since| since.elapsed() >= TRY_AGAIN);
        alone || self.link.is_broken() || self.doors.as_ref().is_some_and(|doors| !is_here(doors))
    }

    /// The link to who carries connections.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
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
        if self.superseded {
            return Ok(Report::default());
        }
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

    /// Tells the carrier what has changed, or all plans if it is a new one, and asks where its doors are. If it turns out to
    /// have gone, another one is told.
    fn tell(
        &mut self,
        settings: &Settings,
        changed: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> io::Result<Option<Doors>> {
        let number = self.link.ensure()?;
        match self.tell_this(number, settings, changed) {
            Err(_) if !self.link.is_linked() => {
                let number = self.link.ensure()?;
                // It is another one, and so is told everything.
                self.tell_this(number, settings, Vec::new())
            }
            other => other,
        }
    }

    fn tell_this(
        &mut self,
        number: u64,
        settings: &Settings,
        changed: Vec<(ServiceName, Option<ServicePlan>)>,
    ) -> io::Result<Option<Doors>> {
        let family = self.rules.family();
        self.link.configure(&settings.userspace)?;
        let services = if number == self.told {
            changed
        } else {
            self.plans.iter().map(|(name, plan)| (name.clone(), Some(plan.clone()))).collect()
        };
        self.link.change(family, services)?;
        self.told = number;
        let reachable = settings.userspace.addresses.iter().copied().filter(|ip| is_reachable(*ip));
        self.link.doors(family, reachable.collect(), self.before)
    }
}

/// Whether packets can be led to an address, wherever they come from.
fn is_reachable(ip: IpAddr) -> bool {
    let within_link = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !within_link
}

/// The rules are not concerned with what is ours, but leave what we send alone: an endpoint may be at an address that leads
/// here, as one in the node's own network that a Service has at the same port.
fn settings_of_rules(settings: &Settings) -> Settings {
    Settings {
        bypass_mark: Some(settings.userspace.bypass_mark),
        userspace: UserspaceSettings::default(),
        ..settings.clone()
    }
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
        let mut otherwise = Vec::new();
        for (name, plan) in &changes {
            if let Some(Err(reason)) = plan.as_ref().map(redirect::wants_header) {
                otherwise.push(Refused { service: name.clone(), reason });
            }
            match plan {
                Some(plan) => drop(self.plans.insert(name.clone(), plan.clone())),
                None => drop(self.plans.remove(name)),
            }
        }
        let names: Vec<ServiceName> = changes.iter().map(|(name, _)| name.clone()).collect();
        let mut afterthoughts = Vec::new();
        // Routes come before rules.
        let doors = self.tell(settings, changes);
        let superseded = doors.as_ref().is_err_and(is_superseded);
        if let Err(error) = &doors
            && (self.alone.is_none() || superseded != self.superseded)
        {
            afterthoughts.push(match superseded {
                true => error.to_string(),
                false => {
                    format!("connections are led by the kernel itself, for nobody carries them: {error}")
                }
            });
        }
        self.alone = doors.is_err().then(Instant::now);
        self.superseded = superseded;
        if superseded {
            return Ok(Report { otherwise, afterthoughts, ..Report::default() });
        }
        let doors = doors.unwrap_or_default();
        self.before = doors.or(self.before);
        let moved = std::mem::replace(&mut self.doors, doors) != doors;
        let names = if moved { self.plans.keys().cloned().chain(names).collect() } else { names };
        let for_rules: HashMap<ServiceName, Option<ServicePlan>> = names
            .into_iter()
            .map(|name| {
                let plan = self.plans.get(&name).map(|plan| self.for_rules(plan));
                (name, plan)
            })
            .collect();
        let mut report = self.rules.sync(&settings_of_rules(settings), for_rules.into_iter().collect())?;
        // And go after them. A carrier that does not hear it is gone, which is noticed.
        _ = self.link.settle(self.rules.family());
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
