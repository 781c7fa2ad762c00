//! Splits a file into its documents.
//!
//! In: the bytes of a YAML or JSON file. Out: slices of one document each, which can be parsed any number of times, and
//! whose errors have the line in the file. YAML is split before it is parsed: a line that begins with `---` ends a
//! document in any context (YAML 1.2, 9.1.2), so that only one parsed document is in memory at a time.

use super::list::Items;
use super::parse::ParseError;
use super::strict::Strict;
use serde::de::DeserializeSeed;
use serde_json::Value;
use serde_json::value::RawValue;
use serde_saphyr::{Options, Spanned, budget, options};

/// One document of a file.
#[derive(Debug)]
pub(super) struct Document<'a> {
    text: &'a str,
    json: bool,
    /// Lines of the file before the slice.
    before: u64,
}

/// Splits a file. Documents without content are left out. An error is the last element: where the next document begins
/// is not known.
pub(super) fn documents<'a>(file_name: &str, bytes: &'a [u8]) -> Vec<Result<Document<'a>, ParseError>> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let line = Some(1 + lines(&bytes[..error.valid_up_to()]));
            return vec![Err(ParseError { line, reason: "the file is not UTF-8 text".into() })];
        }
    };
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if file_name.ends_with(".json") {
        return json_documents(text);
    }
    yaml_documents(text).into_iter().map(Ok).collect()
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// A file with one JSON object after another.
fn json_documents(text: &str) -> Vec<Result<Document<'_>, ParseError>> {
    let mut counter = LineCounter::new(text);
    let mut documents = Vec::new();
    for raw in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let read = raw.map_err(|error| json_error(&error, 0));
        let failed = read.is_err();
        documents.push(read.map(|raw| {
            let text = raw.get();
            Document { text, json: true, before: counter.before(text) }
        }));
        if failed {
            break;
        }
    }
    documents
}

/// Counts the lines before slices of a text, which are in order.
struct LineCounter<'a> {
    text: &'a str,
    counted: usize,
    lines: u64,
}

impl<'a> LineCounter<'a> {
    fn new(text: &'a str) -> Self {
        LineCounter { text, counted: 0, lines: 0 }
    }

    /// The lines before `slice`, which is a part of the text.
    fn before(&mut self, slice: &str) -> u64 {
        let start = slice.as_ptr().addr() - self.text.as_ptr().addr();
        self.lines += lines(&self.text.as_bytes()[self.counted..start]);
        self.counted = start;
        self.lines
    }
}

fn yaml_documents(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut before, mut offset, mut number) = (0, 0, 0, 0);
    // After `...` there may be directives for the next document; they are skipped.
    let mut ended = false;
    let mut push = |from: usize, to: usize, before: u64| {
        let text = &text[from..to];
        let empty = |line: &str| {
            let line = line.strip_prefix("---").unwrap_or(line).trim_start();
            line.is_empty() || line.starts_with('#') || line.starts_with('%')
        };
        if !text.lines().all(empty) {
            documents.push(Document { text, json: false, before });
        }
    };
    for line in text.split_inclusive('\n') {
        let is_marker = |mark: &str| {
            line.strip_prefix(mark)
                .is_some_and(|rest| rest.starts_with([' ', '\t', '\r', '\n']) || rest.is_empty())
        };
        if is_marker("---") || is_marker("...") {
            if !ended {
                push(start, offset, before);
            }
            ended = line.starts_with('.');
            (start, before) = (offset, number);
        } else if ended && !line.trim().is_empty() && !line.starts_with(['#', '%']) {
            ended = false;
            (start, before) = (offset, number);
        }
        offset += line.len();
        number += 1;
    }
    if !ended {
        push(start, text.len(), before);
    }
    documents
}

impl<'a> Document<'a> {
    /// The line in which its content begins.
    pub(super) fn line(&self) -> u64 {
        let blank = |line: &&str| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#') || line == "---"
        };
        self.before + 1 + self.text.lines().take_while(blank).count() as u64
    }

    /// `apiVersion` and `kind`, if they can be found without parsing: in YAML in block style with each of them unquoted
    /// on a line of its own, as in nearly all manifests. Parsing only for them would take as long as parsing
    /// everything.
    pub(super) fn find_type_meta(&self) -> Option<(String, String)> {
        let (mut api_version, mut kind) = (None, None);
        for line in self.text.lines().filter(|_| !self.json) {
            match line.as_bytes().first() {
                None | Some(b' ' | b'#' | b'-') => continue,
                Some(byte) if byte.is_ascii_alphabetic() => {}
                Some(_) => return None,
            }
            let (key, value) = line.split_once(':')?;
            let found = match key {
                "apiVersion" => &mut api_version,
                "kind" => &mut kind,
                _ => continue,
            };
            let value = value.strip_prefix(' ')?.trim();
            let plain = value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'/' || b == b'.');
            if !plain || found.replace(value.to_owned()).is_some() {
                return None;
            }
        }
        api_version.zip(kind)
    }

    /// Parses the document.
    pub(super) fn read<T, S>(&self, seed: S) -> Result<T, ParseError>
    where
        S: for<'de> DeserializeSeed<'de, Value = T>,
    {
        if self.json {
            let mut deserializer = serde_json::Deserializer::from_str(self.text);
            return seed.deserialize(&mut deserializer).map_err(|error| json_error(&error, self.before));
        }
        self.read_yaml(seed)
    }

    /// Parses the items of a List one at a time, each with the line in which it begins. Fails at the first item that
    /// cannot be parsed.
    pub(super) fn read_items(
        &self,
        each: &mut dyn FnMut(u64, serde_json::Result<Value>),
    ) -> Result<(), ParseError> {
        if !self.json {
            return self.read_yaml(Items(&mut |item: Spanned<Value>| {
                each(self.before + item.referenced.line(), Ok(item.value));
            }));
        }
        let mut counter = LineCounter::new(self.text);
        let mut each_raw = |item: &'a RawValue| {
            let line = self.before + counter.before(item.get()) + 1;
            each(line, serde_json::from_str(item.get()));
        };
        Items(&mut each_raw)
            .deserialize(&mut serde_json::Deserializer::from_str(self.text))
            .map_err(|error| json_error(&error, self.before))
    }

    fn read_yaml<T, S>(&self, seed: S) -> Result<T, ParseError>
    where
        S: for<'de> DeserializeSeed<'de, Value = T>,
    {
        serde_saphyr::with_deserializer_from_str_with_options(self.text, yaml_options(), |deserializer| {
            Strict(seed).deserialize(deserializer)
        })
        .map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map(|location| self.before + location.line());
            ParseError { line, reason: reason(error) }
        })
    }
}

fn json_error(error: &serde_json::Error, before: u64) -> ParseError {
    let text = error.to_string();
    // serde_json appends the line and column within the slice.
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason).to_owned();
    ParseError { line: Some(before + error.line() as u64), reason }
}

/// The reason on one line, without the line and column, which are those within the slice.
fn reason(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default().trim();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    match line.rsplit_once(" at line ") {
        Some((reason, _)) => reason.to_owned(),
        None => line.to_owned(),
    }
}

/// The parser's default limits are for small files; these permit one List with all objects. The expansion of aliases
/// stays limited.
fn yaml_options() -> Options {
    options! {
        budget: budget! {
            max_events: 20_000_000,
            max_nodes: 20_000_000,
        },
        emit_comments: false,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_file<'a>(name: &str, text: &'a str) -> Vec<Result<(&'a str, u64), ParseError>> {
        documents(name, text.as_bytes()).into_iter().map(|d| d.map(|d| (d.text, d.line()))).collect()
    }

    fn split(text: &str) -> Vec<(&str, u64)> {
        split_file("x.yaml", text).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn yaml_is_split_at_document_markers() {
        assert_eq!(split("a: 1\n---\nb: 2\n"), [("a: 1\n", 1), ("---\nb: 2\n", 3)]);
        assert_eq!(split("---\n# nothing\n---\n\n---\na: 1"), [("---\na: 1", 6)]);
        assert_eq!(split("--- {a: 1}\n--- {b: 2}\r\n"), [("--- {a: 1}\n", 1), ("--- {b: 2}\r\n", 2)]);
        assert_eq!(split(""), []);
        assert_eq!(split("a: |\n  x\n  ---\n  y\n"), [("a: |\n  x\n  ---\n  y\n", 1)]);
        assert_eq!(split("---a: 1\n"), [("---a: 1\n", 1)]);
    }

    #[test]
    fn an_end_marker_ends_a_document_and_directives_are_skipped() {
        assert_eq!(split("a: 1\n...\n%YAML 1.2\n---\nb: 2\n"), [("a: 1\n", 1), ("---\nb: 2\n", 5)]);
        assert_eq!(split("a: 1\n...\n# c\nb: 2\n"), [("a: 1\n", 1), ("b: 2\n", 4)]);
        assert_eq!(split("a: 1\n...\n"), [("a: 1\n", 1)]);
        assert_eq!(split("%YAML 1.2\n---\na: 1\n"), [("---\na: 1\n", 3)]);
    }

    #[test]
    fn type_meta_is_found_only_in_plain_block_style() {
        let find = |text: &str| documents("x.yaml", text.as_bytes()).remove(0).unwrap().find_type_meta();
        let expected = Some(("v1".to_owned(), "Service".to_owned()));
        assert_eq!(
            find("---\n# c\nkind: Service\nmetadata:\n  kind: X\nitems:\n- kind: Y\napiVersion: v1\n"),
            expected
        );
        for text in [
            "{kind: Service, apiVersion: v1}",
            "kind: Service # c\napiVersion: v1\n",
            "kind: \"Service\"\napiVersion: v1\n",
            "kind: Service\nkind: Service\napiVersion: v1\n",
            "kind: &a Service\napiVersion: v1\n",
            "<<: *x\nkind: Service\napiVersion: v1\n",
            "kind: Service\n",
        ] {
            assert_eq!(find(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_json_file_may_have_several_objects() {
        let all = split_file("x.json", "\n{\"a\":1}\n\n{\n\"b\":2} ");
        assert_eq!(all, [Ok(("{\"a\":1}", 2)), Ok(("{\n\"b\":2}", 4))]);
        let [Ok(first), Err(error)] = &split_file("x.json", "{}\n{")[..] else { panic!() };
        assert_eq!((*first, error.line), (("{}", 1), Some(2)));
    }

    #[test]
    fn the_error_for_invalid_utf8_has_the_line() {
        let [Err(error)] = &documents("x.yaml", b"a: 1\nb: \xff")[..] else { panic!() };
        assert_eq!(error.line, Some(2));
    }
}
