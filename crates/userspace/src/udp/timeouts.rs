//! How long the kernel remembers a UDP flow.

use std::time::Duration;

/// Sessions end this much earlier than that.
const MARGIN: Duration = Duration::from_secs(1);

/// How long a session may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    /// If it was never answered.
    pub(super) unanswered: Duration,
    /// If it was.
    pub(super) answered: Duration,
}

impl Timeouts {
    /// As long as wanted, but not longer than the kernel remembers.
    pub(super) fn now(wanted: Duration) -> Timeouts {
        let kernel = |name, otherwise| read(name).unwrap_or(Duration::from_secs(otherwise));
        Timeouts::within(
            wanted,
            kernel("nf_conntrack_udp_timeout", 30),
            kernel("nf_conntrack_udp_timeout_stream", 120),
        )
    }

    fn within(wanted: Duration, unanswered: Duration, answered: Duration) -> Timeouts {
        // A flow that is answered once is not yet a stream to the kernel.
        let shorter = |limit: Duration| wanted.min(limit.saturating_sub(MARGIN)).max(MARGIN / 2);
        Timeouts {
            unanswered: shorter(unanswered),
            answered: shorter(answered.min(unanswered.max(answered))),
        }
    }
}

fn read(name: &str) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}
