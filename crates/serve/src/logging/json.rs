//! Log lines as JSON, with the keys that klog writes: `ts` (milliseconds since the epoch), `caller`, `msg`, `v` or
//! `level`, and the fields of the line.

use super::fields::{Fields, caller};
use super::verbosity_of;
use serde_json::{Map, Value, json};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats lines as klog's JSON.
#[derive(Debug)]
pub(super) struct KlogJson;

impl<S, N> FormatEvent<S, N> for KlogJson
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
        let fields = Fields::of(event);
        let line = line(SystemTime::now(), &caller(metadata), *metadata.level(), metadata.target(), fields);
        writeln!(writer, "{line}")
    }
}

/// One line.
fn line(at: SystemTime, caller: &str, level: Level, target: &str, fields: Fields) -> Value {
    let mut line = Map::new();
    line.insert("ts".to_owned(), milliseconds(at));
    line.insert("caller".to_owned(), caller.into());
    line.insert("msg".to_owned(), fields.message.into());
    if level == Level::WARN || level == Level::ERROR {
        line.insert("level".to_owned(), level.as_str().to_lowercase().into());
    } else {
        line.insert("v".to_owned(), verbosity_of(level, target).into());
    }
    for (name, value) in fields.others {
        line.entry(name.to_owned()).or_insert(value);
    }
    Value::Object(line)
}

/// The line for an error that ends the process.
pub(super) fn error(message: &str) -> Value {
    let fields = Fields { message: message.to_owned(), others: Vec::new() };
    line(SystemTime::now(), "main.rs", Level::ERROR, "", fields)
}

/// Milliseconds since the epoch, with three digits after the point.
pub(super) fn milliseconds(at: SystemTime) -> Value {
    let micros = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    json!(micros as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_line_has_the_keys_of_klog() {
        let fields = || Fields {
            message: "synced".to_owned(),
            others: vec![("family", "IPv4".into()), ("ts", 1.into())],
        };
        let at = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        let written = line(at, "agent.rs:7", Level::INFO, "portway_proxy", fields());
        let wanted = json!({"ts": 1_700_000_000_123.456, "caller": "agent.rs:7", "msg": "synced", "v": 0, "family": "IPv4"});
        assert_eq!(written, wanted);
        let written = line(at, "agent.rs:7", Level::WARN, "portway_proxy", fields());
        assert_eq!((&written["level"], written.get("v")), (&json!("warn"), None));
    }
}
