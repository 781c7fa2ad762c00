//! Log lines as klog's text, which log collectors for Kubernetes parse:
//! `W1118 10:15:31.123456   25318 report.rs:106] "message" field="value" count=3`.
//!
//! The header is the severity, month and day, the time in UTC, the process id, and the line of the source. A message
//! with fields is quoted, one without fields is not, as klog writes structured and formatted messages.

use super::fields::{Fields, caller};
use crate::rfc3339;
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::time::SystemTime;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats lines as klog's text.
#[derive(Debug)]
pub(super) struct KlogText;

impl<S, N> FormatEvent<S, N> for KlogText
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let header = header(SystemTime::now(), *metadata.level(), &caller(metadata));
        let (on, off) = if writer.has_ansi_escapes() { color(*metadata.level()) } else { ("", "") };
        writeln!(writer, "{on}{header}]{off} {}", body(&Fields::of(event)))
    }
}

/// The line for the lines that were dropped.
pub(super) fn warning(at: SystemTime, fields: &Fields) -> String {
    format!("{}] {}\n", header(at, Level::WARN, "queue.rs:1"), body(fields))
}

fn header(at: SystemTime, level: Level, caller: &str) -> String {
    let severity = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    // 2026-11-18T10:15:31.123456Z becomes 1118 10:15:31.123456.
    let time = rfc3339::format(at);
    let (date, clock) = time.trim_end_matches('Z').split_once('T').unwrap_or_default();
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let day: String = date.chars().skip(5).filter(char::is_ascii_digit).collect();
    format!("{severity}{day} {seconds}.{fraction:0<6.6} {:7} {caller}", std::process::id())
}

/// The color of a header on a terminal, and its end.
fn color(level: Level) -> (&'static str, &'static str) {
    let on = match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        _ => "\x1b[2m",
    };
    (on, "\x1b[0m")
}

fn body(fields: &Fields) -> String {
    if fields.others.is_empty() {
        return fields.message.clone();
    }
    let mut text = format!("{:?}", fields.message);
    for (name, value) in &fields.others {
        _ = match value {
            // The debug format has quoted it already, or it is a number or a list.
            Value::String(value) if is_quoted(value) => write!(text, " {name}={value}"),
            Value::String(value) => write!(text, " {name}={value:?}"),
            other => write!(text, " {name}={other}"),
        };
    }
    text
}

/// Whether a value needs no quotes.
fn is_quoted(value: &str) -> bool {
    let is_between = |first, last| value.starts_with(first) && value.ends_with(last);
    value.len() > 1 && (is_between('"', '"') || is_between('[', ']')) || value.parse::<i64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_header_is_that_of_klog() {
        let at = UNIX_EPOCH + Duration::from_micros(1_763_460_931_000_456);
        let process = format!("{:7}", std::process::id());
        for (level, letter) in
            [(Level::ERROR, 'E'), (Level::WARN, 'W'), (Level::INFO, 'I'), (Level::TRACE, 'I')]
        {
            let wanted = format!("{letter}1118 10:15:31.000456 {process} agent.rs:7");
            assert_eq!(header(at, level, "agent.rs:7"), wanted);
        }
        assert!(header(UNIX_EPOCH, Level::INFO, "").starts_with("I0101 00:00:00.000000 "));
    }

    #[test]
    fn a_message_is_quoted_if_fields_follow() {
        let fields = |others| Fields { message: "the mode \"x\" failed".to_owned(), others };
        assert_eq!(body(&fields(Vec::new())), "the mode \"x\" failed");
        let others: Vec<(&str, Value)> = vec![
            ("family", "IPv4".into()),
            ("count", 3.into()),
            ("full", true.into()),
            ("process", "\"nft\"".into()),
            ("fields", "[\"mode\"]".into()),
            ("error", "line 1\nline 2".into()),
        ];
        let wanted = r#""the mode \"x\" failed" family="IPv4" count=3 full=true process="nft" fields=["mode"] error="line 1\nline 2""#;
        assert_eq!(body(&fields(others)), wanted);
    }
}
