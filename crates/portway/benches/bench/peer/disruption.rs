//! Failed connections while a proxy is disturbed: its rules are removed, or its mode is switched.

use super::load::{Attempt, Load, RATE};
use portway_lab::Namespace;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// How long the load runs before the disturbance.
const LEAD_IN: Duration = Duration::from_secs(1);

/// The connections during and after a disturbance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Disruption {
    /// The number of connections that failed before it: the machine was too busy for the load.
    pub(super) early: usize,
    /// The number of connections that failed.
    pub(super) failed: usize,
    /// Seconds from the disturbance until the last connection that failed; 0 if none failed, infinite if they failed until
    /// the end.
    pub(super) seconds: f64,
}

impl Disruption {
    /// Disturbs a proxy under load, and observes connections for `length` from then on.
    pub(super) fn observe<T>(
        client: &Namespace,
        vip: SocketAddr,
        length: Duration,
        disturb: impl FnOnce() -> Result<T, String>,
    ) -> Result<(Disruption, T), String> {
        let load = Load::start(client, vip);
        thread::sleep(LEAD_IN);
        let began = Instant::now();
        let result = disturb()?;
        thread::sleep((began + length).saturating_duration_since(Instant::now()));
        let attempts = load.stop()?;
        Ok((Disruption::of(&attempts, began), result))
    }

    fn of(attempts: &[Attempt], began: Instant) -> Disruption {
        let failed = attempts.iter().filter(|a| !a.established).map(|a| a.began);
        let (failed, early): (Vec<Instant>, Vec<Instant>) = failed.partition(|at| *at >= began);
        let last_success = attempts.iter().filter(|a| a.established).map(|a| a.began).max();
        let interval = 1.0 / f64::from(RATE);
        let seconds = match failed.iter().max() {
            None => 0.0,
            Some(last) if last_success > Some(*last) => {
                last.saturating_duration_since(began).as_secs_f64() + interval
            }
            Some(_) => f64::INFINITY,
        };
        Disruption { early: early.len(), failed: failed.len(), seconds }
    }
}
