//! Reports that objects cannot be read: one line when it begins, a reminder every minute, one line when it has ended.

use portway_client::Outage;
use portway_model::api::ResourceType;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time between two reminders.
const REMINDER: Duration = Duration::from_secs(60);

/// The resources that cannot be read at the moment.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    /// The last message about each of them; the directory of manifests has no resource.
    open: BTreeMap<Option<ResourceType>, String>,
    since: Option<Instant>,
    reminded: Option<Instant>,
}

impl Outages {
    /// Whether everything can be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Records an outage. The first is logged as a warning, and so is one with another cause.
    pub(crate) fn begin(&mut self, outage: Outage, now: Instant) {
        let Outage { resource, message, reason } = outage;
        self.since.get_or_insert(now);
        self.reminded.get_or_insert(now);
        let is_known = self.open.values().any(|known| cause(known) == cause(&message));
        match is_known {
            true => tracing::debug!(?reason, "{message}"),
            false => tracing::warn!(?reason, "{message}"),
        }
        self.open.insert(resource, message);
    }

    /// Records that a resource can be read again. The last one is logged.
    pub(crate) fn end(&mut self, resource: Option<ResourceType>, now: Instant) {
        if self.open.remove(&resource).is_none() || !self.open.is_empty() {
            return;
        }
        let lasted = self.since.take().map(|since| now.saturating_duration_since(since));
        self.reminded = None;
        tracing::info!(lasted = ?lasted.unwrap_or_default(), "objects can be read again");
    }

    /// Logs a reminder, if one is due.
    pub(crate) fn remind(&mut self, now: Instant) {
        let is_due = self.reminded.is_some_and(|last| now.saturating_duration_since(last) >= REMINDER);
        let Some((_, message)) = self.open.iter().next().filter(|_| is_due) else { return };
        self.reminded = Some(now);
        let minutes = self.since.map_or(0, |since| now.saturating_duration_since(since).as_secs() / 60);
        let resources = self.open.len();
        tracing::warn!(
            minutes,
            resources,
            "objects still cannot be read, the rules stay as they are: {message}"
        );
    }
}

/// The part of a message that several resources share: what follows the name of the resource.
fn cause(message: &str) -> &str {
    message.split_once(": ").map_or(message, |(_, cause)| cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_client::OutageReason;
    use portway_model::api::{EndpointSlice, Resource, Service};

    #[test]
    fn a_reminder_is_due_every_minute_until_all_can_be_read() {
        let start = Instant::now();
        let mut outages = Outages::default();
        for resource in [Service::TYPE, EndpointSlice::TYPE] {
            let message = format!("cannot list {resource}: refused");
            let outage = Outage { resource: Some(resource), reason: OutageReason::Unreachable, message };
            outages.begin(outage, start);
        }
        outages.remind(start + Duration::from_secs(59));
        assert_eq!(outages.reminded, Some(start));
        let later = start + Duration::from_secs(60);
        outages.remind(later);
        assert_eq!(outages.reminded, Some(later));
        outages.end(Some(Service::TYPE), later);
        assert!(!outages.is_empty());
        outages.end(Some(EndpointSlice::TYPE), later);
        assert!(outages.is_empty() && outages.reminded.is_none() && outages.since.is_none());
    }
}
