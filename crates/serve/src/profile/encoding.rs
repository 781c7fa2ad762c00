//! Profiles in the format of pprof: protobuf messages with a table of strings.

use pprof::{Report, Symbol};
use prost::Message;
use std::collections::HashMap;
use std::time::Duration;

/// `perftools.profiles.Profile`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_types: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    pub(super) locations: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) functions: Vec<Function>,
    /// Other messages refer to a string by its index; the first one is empty.
    #[prost(string, repeated, tag = "6")]
    pub(super) strings: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Sample {
    /// The innermost function first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) locations: Vec<u64>,
    /// One for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub(super) values: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) labels: Vec<Label>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) text: i64,
}

/// An instruction: a line of a function, and those of the functions that it was inlined into.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(message, repeated, tag = "4")]
    pub(super) lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) file: i64,
}

/// Encodes a report that began at `started` after the epoch.
pub(super) fn encode(report: &Report, started: Duration, duration: Duration, frequency: i32) -> Vec<u8> {
    let mut tables = Tables::default();
    tables.string("");
    let nanoseconds = tables.string("nanoseconds");
    let counted = ValueType { kind: tables.string("samples"), unit: tables.string("count") };
    let time = ValueType { kind: tables.string("cpu"), unit: nanoseconds };
    let period = 1_000_000_000 / i64::from(frequency);
    let thread = tables.string("thread");
    let samples = report
        .data
        .iter()
        .map(|(stack, &count)| {
            let count = count as i64;
            let label = Label { key: thread, text: tables.string(&stack.thread_name) };
            let locations = stack.frames.iter().map(|symbols| tables.location(symbols)).collect();
            Sample { locations, values: vec![count, count * period], labels: vec![label] }
        })
        .collect();
    Profile {
        sample_types: vec![counted, time.clone()],
        samples,
        locations: tables.locations,
        functions: tables.functions,
        strings: tables.strings,
        time_nanos: nanos(started),
        duration_nanos: nanos(duration),
        period_type: Some(time),
        period,
    }
    .encode_to_vec()
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Strings, functions and locations, each of them once.
#[derive(Default)]
struct Tables {
    strings: Vec<String>,
    functions: Vec<Function>,
    locations: Vec<Location>,
    string_index: HashMap<String, i64>,
    function_ids: HashMap<i64, u64>,
    location_ids: HashMap<Vec<Line>, u64>,
}

impl Tables {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.string_index.get(text) {
            return index;
        }
        let index = self.strings.len() as i64;
        self.strings.push(text.to_owned());
        self.string_index.insert(text.to_owned(), index);
        index
    }

    fn function(&mut self, symbol: &Symbol) -> u64 {
        let system_name = self.string(&symbol.sys_name());
        if let Some(&id) = self.function_ids.get(&system_name) {
            return id;
        }
        let id = self.functions.len() as u64 + 1;
        let (name, file) = (self.string(&symbol.name()), self.string(&symbol.filename()));
        self.functions.push(Function { id, name, system_name, file });
        self.function_ids.insert(system_name, id);
        id
    }

    fn location(&mut self, symbols: &[Symbol]) -> u64 {
        let lines: Vec<Line> = symbols
            .iter()
            .map(|symbol| Line { function: self.function(symbol), line: i64::from(symbol.lineno()) })
            .collect();
        if let Some(&id) = self.location_ids.get(&lines) {
            return id;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.push(Location { id, lines: lines.clone() });
        self.location_ids.insert(lines, id);
        id
    }
}
