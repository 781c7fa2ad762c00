//! Times as in Go's JSON: RFC 3339 in UTC, with as many decimals as needed.

use std::time::{SystemTime, UNIX_EPOCH};

/// Go's zero time, which means "never".
pub const NEVER: &str = "0001-01-01T00:00:00Z";

/// Formats a time in UTC; times before 1970 are formatted as [`NEVER`].
pub fn format(at: SystemTime) -> String {
    let Ok(since) = at.duration_since(UNIX_EPOCH) else { return NEVER.to_owned() };
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = match since.subsec_nanos() {
        0 => String::new(),
        nanos => format!(".{nanos:09}").trim_end_matches('0').to_owned(),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// The date a number of days after 1970-01-01. Years begin in March, so that the leap day is the last day; 719468 is
/// the number of days from 0000-03-01 to 1970-01-01, 146097 that of four centuries.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let day = day - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn known_times_are_formatted() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (1_709_210_096, 0, "2024-02-29T12:34:56Z"),
            (1_709_210_096, 789_000_000, "2024-02-29T12:34:56.789Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (951_868_800, 0, "2000-03-01T00:00:00Z"),
            (1_735_689_599, 0, "2024-12-31T23:59:59Z"),
            (4_107_456_000, 0, "2100-02-28T00:00:00Z"),
            (4_107_542_400, 1, "2100-03-01T00:00:00.000000001Z"),
        ] {
            assert_eq!(format(UNIX_EPOCH + Duration::new(seconds, nanos)), text);
        }
        assert_eq!(format(UNIX_EPOCH - Duration::from_secs(1)), NEVER);
    }

    proptest! {
        #[test]
        fn texts_sort_in_the_order_of_times(a in 0..253_402_300_799u64, b in 0..253_402_300_799u64) {
            let text = |seconds| format(UNIX_EPOCH + Duration::from_secs(seconds));
            prop_assert_eq!(text(a).cmp(&text(b)), a.cmp(&b), "{} {}", text(a), text(b));
            prop_assert_eq!(text(a).len(), "2024-02-29T12:34:56Z".len());
        }
    }
}
