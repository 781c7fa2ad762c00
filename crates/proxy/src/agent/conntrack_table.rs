//! Watches the kernel's table of connections: when it is full, new connections are dropped, Services or not.
//!
//! In: the size of the table and the number of dropped packets, from /proc. Out: what to report, once when packets are
//! dropped and once when that has ended. The kernel logs `nf_conntrack: table full, dropping packet` only in its own log.

use std::path::Path;
use std::time::{Duration, Instant};

/// Drops have ended if there were none for so long.
const QUIET: Duration = Duration::from_secs(60);

/// The state of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The number of connections.
    pub(crate) entries: u64,
    /// The largest number of connections.
    pub(crate) limit: u64,
    /// Packets that connection tracking dropped since the start of the kernel: because the table was full, or because two
    /// packets raced for one entry.
    pub(crate) dropped: u64,
}

impl Sample {
    /// Whether the table is full, or was a moment ago.
    fn is_full(&self) -> bool {
        self.entries >= self.limit - self.limit / 20
    }

    /// The table of this network namespace; none if the kernel does not track connections.
    pub(crate) fn take() -> Option<Sample> {
        let read = |path: &str| std::fs::read_to_string(Path::new("/proc").join(path)).ok();
        let number = |path: &str| read(path)?.trim().parse().ok();
        Some(Sample {
            entries: number("sys/net/netfilter/nf_conntrack_count")?,
            limit: number("sys/net/netfilter/nf_conntrack_max")?,
            dropped: read("net/stat/nf_conntrack").and_then(|text| dropped(&text)).unwrap_or(0),
        })
    }
}

/// The sum of the column `drop` over all processors; values are hexadecimal.
fn dropped(statistics: &str) -> Option<u64> {
    let mut lines = statistics.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == "drop")?;
    let value = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    lines.map(value).sum()
}

/// A change to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Packets are dropped.
    Full(Sample),
    /// No packets have been dropped for a while; so many were.
    Over(u64),
}

/// The table as it was last seen.
#[derive(Debug, Default)]
pub(crate) struct ConntrackTable {
    last: Option<Sample>,
    /// Since the table was full: the drops before, and the time of the last drop.
    full: Option<(u64, Instant)>,
}

impl ConntrackTable {
    /// Compares a sample with the previous one. Also returns the packets that were dropped since then.
    pub(crate) fn update(&mut self, sample: Sample, now: Instant) -> (u64, Option<Change>) {
        let before = self.last.replace(sample).map_or(sample.dropped, |last| last.dropped);
        let new = sample.dropped.saturating_sub(before);
        let change = match self.full {
            None if new > 0 && sample.is_full() => {
                self.full = Some((before, now));
                Some(Change::Full(sample))
            }
            Some((start, _)) if new > 0 => {
                self.full = Some((start, now));
                None
            }
            Some((start, last)) if now.saturating_duration_since(last) >= QUIET => {
                self.full = None;
                Some(Change::Over(sample.dropped.saturating_sub(start)))
            }
            _ => None,
        };
        (new, change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drops_of_all_processors_are_added() {
        let text = "entries  found insert_failed drop early_drop\n\
                    0000a  00000000 00000001 0000000f 00000000\n0000a  00000000 00000001 00000001 00000000\n";
        assert_eq!(dropped(text), Some(16));
        assert_eq!(dropped("entries found\n1 2\n"), None);
    }

    #[test]
    fn a_full_table_is_reported_once_and_its_end_after_a_while() {
        let (start, mut table) = (Instant::now(), ConntrackTable::default());
        let mut at = |seconds: u64, dropped: u64| {
            let sample = Sample { entries: 8, limit: 8, dropped };
            table.update(sample, start + Duration::from_secs(seconds))
        };
        assert_eq!(at(0, 100), (0, None), "drops before the start are not this agent's");
        let full = Sample { entries: 8, limit: 8, dropped: 103 };
        assert_eq!(at(5, 103), (3, Some(Change::Full(full))));
        assert_eq!(at(10, 110), (7, None));
        assert_eq!(at(60, 110), (0, None));
        assert_eq!(at(70, 110), (0, Some(Change::Over(10))));
        assert_eq!(at(75, 110), (0, None));
        assert_eq!(at(80, 111).0, 1);
        let half = Sample { entries: 4, limit: 8, dropped: 5 };
        let mut table = ConntrackTable { last: Some(Sample { dropped: 4, ..half }), full: None };
        assert_eq!(table.update(half, start), (1, None), "a race of two packets");
    }
}
