//! Timestamps of objects: seconds in protobuf, RFC 3339 text in JSON. The parser reads UTC or an offset, with or
//! without fractions of a second; times are written as the API server writes them.

use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A timestamp: seconds in protobuf, RFC 3339 text in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Time {
    /// Seconds since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format_rfc3339(self.seconds))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (seconds, _) = deserialize_time(d)?;
        Ok(Time { seconds })
    }
}

/// `meta/v1 MicroTime`: a timestamp with microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MicroTime {
    /// Seconds since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds; JSON has only whole microseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl MicroTime {
    /// From the duration since the epoch.
    pub fn since_epoch(since: std::time::Duration) -> MicroTime {
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        MicroTime { seconds, nanos: since.subsec_micros() as i32 * 1000 }
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let seconds = format_rfc3339(self.seconds);
        s.serialize_str(&format!("{}.{:06}Z", seconds.trim_end_matches('Z'), self.nanos / 1000))
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (seconds, nanos) = deserialize_time(d)?;
        Ok(MicroTime { seconds, nanos: i32::try_from(nanos).unwrap_or(0) })
    }
}

fn deserialize_time<'de, D: Deserializer<'de>>(d: D) -> Result<(i64, u32), D::Error> {
    let text = String::deserialize(d)?;
    parse_rfc3339(&text).ok_or_else(|| {
        serde::de::Error::custom(format_args!("{text:?} is not a time such as 2006-01-02T15:04:05Z"))
    })
}

/// Seconds since the epoch and nanoseconds, or `None` if `text` is not an RFC 3339 time.
pub fn parse_rfc3339(text: &str) -> Option<(i64, u32)> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let mut parts = date.splitn(3, '-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone_at);
    let (clock, nanos) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, nanoseconds(fraction)?),
        None => (clock, 0),
    };
    let mut parts = clock.splitn(3, ':');
    let (hour, minute, second) =
        (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_since_epoch(year, month, day);
    // 30 February is a day of March.
    if civil_date(days) != (year, month, day) {
        return None;
    }
    let local = days * 86_400 + hour * 3600 + minute * 60 + second;
    Some((local - offset(zone)?, nanos))
}

/// Formats seconds since the epoch as the API server does.
pub fn format_rfc3339(seconds: i64) -> String {
    let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn digits(text: &str, len: usize) -> Option<i64> {
    (text.len() == len && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn nanoseconds(fraction: &str) -> Option<u32> {
    if fraction.is_empty() || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(9)
        .try_fold(0u32, |n, b| Some(n * 10 + u32::from(b - b'0')))
}

fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar; years are counted from March so that the leap day comes
/// last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The date `days` days after 1970-01-01: the inverse of [`days_since_epoch`].
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * month_from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::{format_rfc3339, parse_rfc3339};
    use proptest::prelude::*;

    #[test]
    fn rfc3339_times_are_parsed() {
        assert_eq!(parse_rfc3339("1970-01-01T00:00:00Z"), Some((0, 0)));
        assert_eq!(parse_rfc3339("2024-02-29T12:34:56Z"), Some((1_709_210_096, 0)));
        assert_eq!(parse_rfc3339("2024-02-29T12:34:56.789Z"), Some((1_709_210_096, 789_000_000)));
        assert_eq!(parse_rfc3339("2024-02-29T14:34:56+02:00"), Some((1_709_210_096, 0)));
        assert_eq!(parse_rfc3339("2026-11-15T00:00:00-01:30"), Some((1_794_706_200, 0)));
    }

    #[test]
    fn other_text_is_none() {
        for text in [
            "",
            "yesterday",
            "2024-02-29",
            "2024-13-01T00:00:00Z",
            "2024-02-29T12:34:56",
            "2024-2-9T1:2:3Z",
            "2023-02-29T00:00:00Z",
            "2024-02-29T00:00:00+24:00",
            "2024-02-29T00:00:00-01:60",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
    proptest! {
        #[test]
        fn a_formatted_time_parses_to_the_same_time(seconds in -62_135_596_800i64..253_402_300_800) {
            let text = format_rfc3339(seconds);
            prop_assert_eq!(parse_rfc3339(&text), Some((seconds, 0)), "{}", text);
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "[0-9TtZz:.+-]{0,30}|\\PC{0,30}") {
            parse_rfc3339(&text);
        }
    }
}
