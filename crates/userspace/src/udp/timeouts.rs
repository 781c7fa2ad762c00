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
    /// How long the kernel remembers a flow.
    pub(super) fn of_kernel() -> Timeouts {
        let kernel = |name, otherwise| read(name).unwrap_or(Duration::from_secs(otherwise));
        Timeouts {
            passing: kernel("nf_conntrack_udp_timeout", 30),
            lasting: kernel("nf_conntrack_udp_timeout_stream", 120),
        }
    }

    /// As long as wanted, but not longer than the kernel remembers.
    pub(super) fn for_sessions(self, wanted: Duration) -> Timeouts {
        let shorter = |limit: Duration| wanted.min(limit.saturating_sub(MARGIN)).max(MARGIN / 2);
        Timeouts { passing: shorter(self.passing), lasting: shorter(self.lasting) }
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
            let t = Timeouts { passing: seconds(30), lasting: seconds(120) }.for_sessions(seconds(wanted));
            (t.passing, t.lasting)
        };
        assert_eq!(at(120), (seconds(29), seconds(119)));
        assert_eq!(at(60), (seconds(29), seconds(60)));
        assert_eq!(at(5), (seconds(5), seconds(5)));
        let short = Timeouts { passing: seconds(1), lasting: seconds(1) }.for_sessions(seconds(60));
        assert!(short.passing > Duration::ZERO && short.passing < seconds(1));
    }
}
