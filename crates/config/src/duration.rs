//! Durations in Go's syntax: `1m30s`, `250ms`, `24h0m0s`.
//!
//! Negative durations are errors, because no setting accepts them.

use std::time::Duration;

/// Units by name, in nanoseconds. Go accepts both the micro sign and the Greek letter.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Go keeps a duration in a signed 64-bit count of nanoseconds, about 292 years.
const MAX_NANOS: u128 = i64::MAX as u128;

/// The reason that a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// Not Go's syntax.
    #[error("is not a duration such as 30s, 1m30s or 250ms")]
    Syntax,
    /// A number without a unit, the most common error.
    #[error("lacks a unit: write for example 30s, 5m or 1h")]
    NoUnit,
    /// Below zero.
    #[error("must not be negative")]
    Negative,
    /// Longer than Go's `time.Duration` can hold.
    #[error("is longer than 292 years")]
    TooLong,
}

/// Parses Go's duration syntax: numbers with an optional fraction, each followed by its unit.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(InvalidDuration::Syntax);
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (part, tail) = parse_part(rest)?;
        nanos = nanos.saturating_add(part);
        rest = tail;
    }
    match nanos {
        0 => Ok(Duration::ZERO),
        _ if negative => Err(InvalidDuration::Negative),
        nanos if nanos > MAX_NANOS => Err(InvalidDuration::TooLong),
        nanos => Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))),
    }
}

/// Parses one number with its unit. Returns the nanoseconds and the rest of the text.
fn parse_part(text: &str) -> Result<(u128, &str), InvalidDuration> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(InvalidDuration::Syntax);
    }
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, tail) = rest.split_at(unit_end);
    if unit.is_empty() {
        return Err(InvalidDuration::NoUnit);
    }
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(InvalidDuration::Syntax)?;
    let whole = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| InvalidDuration::TooLong)? };
    let nanos = scale.checked_mul(whole).ok_or(InvalidDuration::TooLong)?;
    Ok((nanos.saturating_add(scale_fraction(fraction, *scale)), tail))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// The nanoseconds of a fraction such as `.5` of a unit; digits below a nanosecond are cut off, as Go does.
fn scale_fraction(digits: &str, scale: u128) -> u128 {
    let (mut value, mut divisor) = (0u128, 1u128);
    for digit in digits.bytes().take(18) {
        value = value * 10 + u128::from(digit - b'0');
        divisor *= 10;
    }
    value * scale / divisor
}

/// Formats a duration as Go's `Duration.String` does, so that printed files can be compared with kube-proxy's.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let unit = match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => ("µs", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    let minutes = nanos / 60_000_000_000;
    let seconds = decimal(nanos - minutes * 60_000_000_000, unit.1);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}{}", unit.0),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `nanos / unit` with as many decimals as it needs.
fn decimal(nanos: u128, unit: u128) -> String {
    let (whole, rest) = (nanos / unit, nanos % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{whole}.{}", format!("{rest:0width$}").trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn go_durations_are_parsed() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("-0s", 0),
            ("30s", 30_000),
            ("+5s", 5_000),
            ("1m30s", 90_000),
            ("2h22m", 8_520_000),
            ("250ms", 250),
            ("1.5s", 1_500),
            (".5s", 500),
            ("1.s", 1_000),
            ("1000000us", 1_000),
            ("1000000µs", 1_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_rejected_with_the_reason() {
        for (text, reason) in [
            ("", InvalidDuration::Syntax),
            ("-", InvalidDuration::Syntax),
            ("s", InvalidDuration::Syntax),
            (".s", InvalidDuration::Syntax),
            ("3 s", InvalidDuration::Syntax),
            ("1d", InvalidDuration::Syntax),
            ("30", InvalidDuration::NoUnit),
            ("1m30", InvalidDuration::NoUnit),
            ("-3s", InvalidDuration::Negative),
            ("9999999999h", InvalidDuration::TooLong),
            ("340282366920938463463374607431768211456s", InvalidDuration::TooLong),
        ] {
            assert_eq!(parse_duration(text), Err(reason), "{text}");
        }
    }

    #[test]
    fn durations_are_formatted_as_in_go() {
        for (text, nanos) in [
            ("0s", 0),
            ("1ns", 1),
            ("1.1µs", 1_100),
            ("2.2ms", 2_200_000),
            ("3.3s", 3_300_000_000),
            ("4m5.001s", 245_001_000_000),
            ("15m0s", 900_000_000_000),
            ("24h0m0s", 86_400_000_000_000),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanos)), text);
        }
    }

    proptest! {
        #[test]
        fn formatted_durations_parse_back(nanos in 0..=i64::MAX as u64) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}|[-+]?[0-9.]{0,40}[nuµmshx]{0,3}") {
            let _ = parse_duration(&text);
        }
    }
}
