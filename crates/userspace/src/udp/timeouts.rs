//! How long the kernel remembers a UDP flow.

use std::time::Duration;

/// Sessions end this much earlier than that.
const MARGIN: Duration = Duration::from_secs(1);

/// How long a session may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    /// If it is new, or was never answered.
    pub(super) passing: Duration,
    /// If it is one that lasts.
    pub(super) lasting: Duration,
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

    fn within(wanted: Duration, passing: Duration, lasting: Duration) -> Timeouts {
        let shorter = |limit: Duration| wanted.min(limit.saturating_sub(MARGIN)).max(MARGIN / 2);
        Timeouts { passing: shorter(passing), lasting: shorter(lasting) }
    }
}

fn read(name: &str) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/{name}")).ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_before_the_kernel_forgets_its_flow() {
        let seconds = Duration::from_secs;
        let at = |wanted| {
            let t = Timeouts::within(seconds(wanted), seconds(30), seconds(120));
            (t.passing, t.lasting)
        };
        assert_eq!(at(120), (seconds(29), seconds(119)));
        assert_eq!(at(60), (seconds(29), seconds(60)));
        assert_eq!(at(5), (seconds(5), seconds(5)));
        let short = Timeouts::within(seconds(60), seconds(1), seconds(1));
        assert!(short.passing > Duration::ZERO && short.passing < seconds(1));
    }
}
