//! Accepts forwarded Service traffic on a host whose policy of chain FORWARD is DROP, beside a mode with other rules.
//!
//! A packet has to be accepted by the base chains of every program: the rules of nf_tables cannot overrule the policy that
//! iptables has, as on hosts with Docker. [`ForwardPolicy`] is a [`Backend`] around that of such a mode. Where the policy is
//! DROP it adds the chain `KUBE-FORWARD`, as the iptables mode has it: packets that are to be masqueraded, and those of
//! established connections, are accepted. Where it is not, no rule is added.

use crate::chains::{Chain, Fixed, Table};
use crate::commit::{Kernel, Tool};
use crate::desired::{Abilities, Base, Hook, Renderer, ServiceRules};
use crate::drift::TablesDetector;
use crate::fragments::forward;
use crate::rules::Rule;
use crate::variant::{self, Tools, Variant};
use crate::{Engine, leftovers};
use portway_dataplane::trace::{Host, Packet, Trace};
use portway_dataplane::{
    Backend, CounterSource, Drift, DriftSignal, Error, Families, Location, Outcome, PlanChanges, Report,
    Settings, Wake,
};
use portway_model::Family;
use portway_netlink::nft::{self, list};
use portway_netlink::{Protocol, Socket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between checks of the policy, until the agent sets another.
const CHECK_PERIOD: Duration = Duration::from_secs(30);

/// The time until rules that could not be written are tried again; it doubles with every failure.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// The rules that accept forwarded Service traffic.
const RENDERER: Renderer = Renderer { base, service: |_, _, _| ServiceRules::default() };

fn base(_: Family, settings: &Settings, abilities: Abilities) -> Base {
    let accepting = Settings { drop_invalid: false, ..settings.clone() };
    let rule = Rule::jump(Fixed::Forward).comment("kubernetes forwarding rules");
    Base {
        chains: vec![(Table::Filter, Fixed::Forward, forward(&accepting, abilities))],
        hooks: vec![Hook { table: Table::Filter, chain: Chain::parse("FORWARD"), rule }],
    }
}

/// A mode, and the rules that accept its forwarded traffic.
#[derive(Debug)]
pub struct ForwardPolicy {
    mode: Box<dyn Backend>,
    accepting: Vec<Accepting>,
    /// Tables in which the rules could not be added, which was logged; it is tried again with every check.
    failed: Vec<(Variant, Family)>,
    /// The rules could not be written: the next check tries again.
    retry: bool,
    wake: Wake,
    period: Duration,
    next_check: Instant,
    /// The next sync opens rules that are missing.
    is_due: bool,
}

/// The rules in the tables of one variant and family.
#[derive(Debug)]
struct Accepting {
    variant: Variant,
    family: Family,
    rules: Box<dyn Backend>,
    /// How often in a row the rules could not be written; the first time was logged.
    failures: u32,
    /// When they are tried again.
    retry_at: Option<Instant>,
}

impl ForwardPolicy {
    /// The mode `mode`, whose rules are not in the tables of iptables.
    pub fn new(mode: Box<dyn Backend>, now: Instant) -> ForwardPolicy {
        ForwardPolicy {
            mode,
            accepting: Vec::new(),
            failed: Vec::new(),
            retry: false,
            wake: Wake::default(),
            period: CHECK_PERIOD,
            next_check: now + CHECK_PERIOD,
            is_due: true,
        }
    }

    fn has(&self, variant: Variant, family: Family) -> bool {
        self.accepting.iter().any(|a| (a.variant, a.family) == (variant, family))
    }

    /// The tables with policy DROP in which the rules are missing.
    fn dropping(&self) -> Vec<(Variant, Family)> {
        let all =
            Variant::ALL.into_iter().flat_map(|v| self.mode.families().into_iter().map(move |f| (v, f)));
        let missing = |(v, f): &(Variant, Family)| !self.has(*v, *f);
        all.filter(missing).filter(|(v, f)| drops_forwarded(*v, *f)).collect()
    }

    /// Opens the rules where they are missing. Returns warnings.
    fn open(&mut self, now: Instant) -> Vec<String> {
        self.next_check = now + self.period;
        self.is_due = false;
        let mut warnings = Vec::new();
        for (variant, family) in self.dropping() {
            let tables = leftovers::location(variant, family);
            match open(variant, family, now) {
                Ok(mut rules) => {
                    rules.set_wake(self.wake.clone());
                    rules.set_audit_period(self.period);
                    tracing::info!(%tables, "the policy of chain FORWARD is DROP; adding rules that accept Service traffic");
                    self.accepting.push(Accepting { variant, family, rules, failures: 0, retry_at: None });
                    self.failed.retain(|failed| *failed != (variant, family));
                }
                Err(error) if !self.failed.contains(&(variant, family)) => {
                    self.failed.push((variant, family));
                    warnings.push(warning(&tables, &error));
                }
                Err(_) => {}
            }
        }
        warnings
    }

    fn backends(&mut self) -> impl Iterator<Item = &mut Box<dyn Backend>> {
        std::iter::once(&mut self.mode).chain(self.accepting.iter_mut().map(|a| &mut a.rules))
    }
}

/// The time until the next attempt after this many failures before.
fn wait(failures: u32) -> Duration {
    RETRY_PERIOD.saturating_mul(1 << failures.min(16))
}

fn warning(tables: &Location, error: &Error) -> String {
    format!(
        "{tables}: the policy of chain FORWARD is DROP, and Service traffic that this node forwards is dropped: {error}"
    )
}

fn open(variant: Variant, family: Family, now: Instant) -> Result<Box<dyn Backend>, Error> {
    let tools = Tools::of(variant).ok_or_else(|| Error::Unsupported {
        feature: format!("iptables ({variant})"),
        hint: "install iptables, or accept the traffic in chain FORWARD".to_owned(),
    })?;
    let open = |family| Engine::open(&tools, family, RENDERER);
    Ok(Box::new(Families::open(&[family], open, TablesDetector::new(variant, now))?))
}

/// Whether iptables' chain FORWARD exists and its policy is DROP.
fn drops_forwarded(variant: Variant, family: Family) -> bool {
    match variant {
        Variant::Nft => {
            let nft = if family == Family::V6 { nft::Family::Ipv6 } else { nft::Family::Ipv4 };
            let chains =
                Socket::open(Protocol::Netfilter).and_then(|mut s| list::chains(&mut s, nft, "filter"));
            let drops =
                |chain: &nft::Chain| *chain.name == *"FORWARD" && chain.hook.is_some_and(|h| !h.accept);
            chains.is_ok_and(|chains| chains.iter().any(drops))
        }
        // The kernel loads the table with its first rule, so a listing does not create it.
        Variant::Legacy if !variant::is_used(variant, family) => false,
        Variant::Legacy => {
            let tool = Tools::of(variant).and_then(|tools| Tool::open(&tools, family).ok());
            let mut drops = false;
            if let Some(mut tool) = tool {
                _ = tool.save(&mut |line| drops |= line.starts_with(":FORWARD DROP "));
            }
            drops
        }
    }
}

impl Backend for ForwardPolicy {
    fn families(&self) -> Vec<Family> {
        self.mode.families()
    }

    fn sync(&mut self, family: Family, settings: &Settings, changes: PlanChanges) -> Result<Report, Error> {
        let mut report = self.mode.sync(family, settings, changes)?;
        let now = Instant::now();
        if self.is_due {
            report.warnings.extend(self.open(now));
        }
        let due = |a: &&mut Accepting| a.family == family && a.retry_at.is_none_or(|at| at <= now);
        for accepting in self.accepting.iter_mut().filter(due) {
            let tables = leftovers::location(accepting.variant, family);
            match accepting.rules.sync(family, settings, Vec::new()) {
                Ok(own) => {
                    (accepting.failures, accepting.retry_at) = (0, None);
                    report.added += own.added;
                    report.removed += own.removed;
                    report.drift.merge(own.drift);
                    report.warnings.extend(own.warnings);
                }
                Err(error) => {
                    if accepting.failures == 0 {
                        report.warnings.push(warning(&tables, &error));
                    }
                    self.retry = true;
                    let retry_at = now + wait(accepting.failures).min(self.period);
                    self.next_check = self.next_check.min(retry_at);
                    accepting.retry_at = Some(retry_at);
                    accepting.failures += 1;
                }
            }
        }
        Ok(report)
    }

    fn mark_stale(&mut self) {
        self.backends().for_each(|b| b.mark_stale());
    }

    fn verify(&mut self, family: Family) -> Result<Drift, Error> {
        let mut drift = self.mode.verify(family)?;
        for accepting in self.accepting.iter_mut().filter(|a| a.family == family) {
            drift.merge(accepting.rules.verify(family)?);
        }
        Ok(drift)
    }

    fn trace(&mut self, packet: &Packet, host: &Host) -> Result<Trace, Error> {
        self.mode.trace(packet, host)
    }

    fn locations(&self) -> Vec<Location> {
        let own = self.accepting.iter().map(|a| leftovers::location(a.variant, a.family));
        self.mode.locations().into_iter().chain(own).collect()
    }

    fn failure_metric(&self) -> &'static str {
        self.mode.failure_metric()
    }

    fn counters(&self) -> Option<Arc<dyn CounterSource>> {
        self.mode.counters()
    }

    fn stop(&mut self, settings: &Settings) {
        self.mode.stop(settings);
    }

    fn set_wake(&mut self, wake: Wake) {
        self.backends().for_each(|b| b.set_wake(wake.clone()));
        self.wake = wake;
    }

    fn set_audit_period(&mut self, period: Duration) {
        self.backends().for_each(|b| b.set_audit_period(period));
        self.period = period;
    }

    fn sync_begins(&mut self, now: Instant) {
        self.backends().for_each(|b| b.sync_begins(now));
    }

    fn sync_ended(&mut self, outcomes: &[Outcome], now: Instant) -> bool {
        self.backends().fold(false, |unnoticed, b| b.sync_ended(outcomes, now) | unnoticed)
    }

    fn detect_drift(&mut self, now: Instant) -> Option<DriftSignal> {
        let signal = self.backends().find_map(|b| b.detect_drift(now));
        if signal.is_some() || now < self.next_check {
            return signal;
        }
        self.next_check = now + self.period;
        // The sync that follows adds the rules.
        self.is_due = !self.dropping().is_empty();
        (std::mem::take(&mut self.retry) || self.is_due).then_some(DriftSignal::Possible)
    }

    fn next_drift_check(&self) -> Option<Instant> {
        let of_rules = self.accepting.iter().filter_map(|a| a.rules.next_drift_check());
        of_rules.chain(self.mode.next_drift_check()).chain([self.next_check]).min()
    }

    fn restart_drift_detection(&mut self) {
        self.backends().for_each(|b| b.restart_drift_detection());
    }

    fn is_listening(&self) -> bool {
        self.mode.is_listening() && self.accepting.iter().all(|a| a.rules.is_listening())
    }
}

#[cfg(test)]
mod tests;
