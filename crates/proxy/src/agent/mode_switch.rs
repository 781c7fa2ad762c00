//! Changes of the configuration while the agent runs, and the switch to another mode.
//!
//! In: the new configuration, or its errors. Out: settings that take effect with the next sync, and log lines about those
//! that need a restart. A new mode is in force once all its rules are written; until then the running one stays.

use super::backends::Backends;
use super::{Agent, AgentError, apply_sysctls};
use crate::config::{Config, Warnings, diff_live, keep_until_restart};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

impl Agent {
    /// Switches to the configured mode: its rules are complete before those of the previous mode are removed. False if
    /// that failed and has to be retried; the previous mode then stays in force.
    pub(super) fn switch(&mut self, backends: &mut Backends, primary: &[IpAddr]) -> Result<bool, AgentError> {
        let (from, to) = (backends.mode().name(), self.config.mode.as_str());
        let settings = self.settings_now(primary);
        let mut next = match Backends::open(&self.config, &settings) {
            Ok(next) => next,
            Err(error) => {
                self.report_mode_failure(format!("stays in mode {from}: mode {to} cannot be used: {error}"));
                return Ok(false);
            }
        };
        next.set_rival(self.rivals.exist());
        let (outcomes, drift_unnoticed) = next.sync(&settings, self.cluster.plans());
        let mut failed = false;
        for outcome in outcomes {
            failed |= !self.record(&outcome, next.failure_metric(), &[])?;
        }
        if failed {
            self.report_mode_failure(format!(
                "stays in mode {from}: not all rules of mode {to} could be written"
            ));
            // The rules that were written have no backend any more that updates them.
            drop(next);
            // Where both modes use the same tables, rules of the running mode may have been replaced: they are restored
            // before those of the new mode are removed. A failure of that is repaired by the retry.
            backends.mark_stale();
            if let Some(running) = &self.settings {
                _ = backends.sync(running, Vec::new());
            }
            backends.remove_leftovers(&settings);
            return Ok(false);
        }
        self.metrics.set_mode_counters(next.counters());
        self.families = next.families();
        self.settings = Some(settings);
        self.mode_failure = None;
        *backends = next;
        // Published before the log line, so that /configz shows the new mode to a reader of the log.
        self.config_sender.send_replace(Arc::new(self.config.clone()));
        tracing::info!(from, to, "the mode was switched");
        if drift_unnoticed {
            self.repair_soon();
        }
        Ok(true)
    }

    /// Logs why the configured mode cannot be used; once, although it is tried again and again.
    fn report_mode_failure(&mut self, failure: String) {
        match self.mode_failure.as_ref() == Some(&failure) {
            true => tracing::debug!("{failure}"),
            false => tracing::error!("{failure}; it is tried again"),
        }
        self.mode_failure = Some(failure);
    }

    /// Applies a changed configuration file. Settings that need a restart keep their values.
    pub(super) fn reload(&mut self, changed: Result<(Config, Warnings), String>) {
        let new = match changed {
            Ok((new, warnings)) => {
                self.report_warnings(&warnings, &new);
                new
            }
            Err(message) => {
                tracing::error!("the changed configuration is not used: {message}");
                return;
            }
        };
        let change = diff_live(&self.config, &new);
        if change.is_empty() {
            return;
        }
        for field in &change.needs_restart {
            tracing::warn!(
                field,
                "changed in the configuration file: takes effect when portway is started again"
            );
        }
        // /configz shows the settings in force, so settings that need a restart keep their old values.
        self.config = keep_until_restart(&self.config, new);
        // A new mode is published once it is in force.
        let mode = self.config_sender.borrow().mode;
        self.config_sender.send_replace(Arc::new(Config { mode, ..self.config.clone() }));
        let (mode, applied): (Vec<&str>, Vec<&str>) =
            change.applied.iter().map(AsRef::as_ref).partition(|field: &&str| *field == "mode");
        if !mode.is_empty() {
            // It is in force when "the mode was switched" is logged.
            tracing::info!(to = self.config.mode.as_str(), "the mode is to be switched");
            self.metrics.mode_active(false);
            self.mode_failure = None;
        }
        if !applied.is_empty() {
            tracing::info!(fields = ?applied, "configuration applied");
        }
        self.health.lock().set_timeout(self.config.health_timeout());
        (self.set_verbosity)(self.config.logging.verbosity);
        apply_sysctls(&self.config);
        self.pace.set_periods(self.config.sync());
        if self.cluster.ready() {
            self.pace.request(Instant::now());
        }
    }
}
