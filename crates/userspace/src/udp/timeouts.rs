//! How long a UDP session may be idle: not longer than the kernel tracks its flow.

use std::time::Duration;

/// Sessions end this much before the tracked flow.
const MARGIN: Duration = Duration::from_secs(1);

/// Idle times, by the kernel's two kinds of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    /// Of a flow that is new or was never answered.
    pub(super) unreplied: Duration,
    /// Of a stream.
    pub(super) stream: Duration,
}

impl Timeouts {
    /// The kernel's time-outs of tracked flows.
    pub(super) fn of_kernel() -> Timeouts {
        let kernel = |name, default| read(name).unwrap_or(Duration::from_secs(default));
        Timeouts {
            unreplied: kernel("nf_conntrack_udp_timeout", 30),
            stream: kernel("nf_conntrack_udp_timeout_stream", 120),
        }
    }

    /// The configured idle time, shortened to the kernel's.
    pub(super) fn for_sessions(self, configured: Duration) -> Timeouts {
        let shorter = |limit: Duration| configured.min(limit.saturating_sub(MARGIN)).max(MARGIN / 2);
        Timeouts { unreplied: shorter(self.unreplied), stream: shorter(self.stream) }
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
    fn a_session_ends_before_its_tracked_flow() {
        let seconds = Duration::from_secs;
        let at = |configured| {
            let t =
                Timeouts { unreplied: seconds(30), stream: seconds(120) }.for_sessions(seconds(configured));
            (t.unreplied, t.stream)
        };
        assert_eq!(at(120), (seconds(29), seconds(119)));
        assert_eq!(at(60), (seconds(29), seconds(60)));
        assert_eq!(at(5), (seconds(5), seconds(5)));
        let short = Timeouts { unreplied: seconds(1), stream: seconds(1) }.for_sessions(seconds(60));
        assert!(short.unreplied > Duration::ZERO && short.unreplied < seconds(1));
    }
}
