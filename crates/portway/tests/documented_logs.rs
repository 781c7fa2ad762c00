//! The log messages that README.md and docs/ quote are those of the source.
//!
//! Quoted are lines of code blocks that begin with klog's header, and the first column of the table in docs/operations.md,
//! section "Log messages". A quote is compared by its constant parts: the text before the first
//! field (`mode=…`), cut at `…`, at numbers, at quoted values and at colons. Each part of two words or more has to occur
//! in a string literal of the source; tests do not count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages: README.md and docs/*.md.
fn pages() -> Vec<(String, String)> {
    let docs = std::fs::read_dir(root().join("docs")).expect("docs/").flatten().map(|entry| entry.path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("a page"))
    };
    pages.chain([root().join("README.md")]).map(read).collect()
}

/// The messages of the log lines in code blocks.
fn in_code_blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    blocks.flat_map(|block| block.lines().skip(1)).filter_map(message).collect()
}

/// The message of a log line: the text after klog's header, as in `W1118 10:15:31.123456    1832 agent.rs:7] message`.
fn message(line: &str) -> Option<&str> {
    let (header, message) = line.trim_start().split_once("] ")?;
    let day = header.strip_prefix(['E', 'W', 'I'])?.split(' ').next()?;
    (day.len() == 4 && day.parse::<u16>().is_ok()).then_some(message)
}

/// The messages in the first column of a page's table of log messages.
fn in_table(page: &str) -> Vec<&str> {
    let section = page.split("\n## ").find(|section| section.starts_with("Log messages"));
    let rows = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells.flat_map(|cell| cell.split("`, `")).map(|message| message.trim_end_matches('`')).collect()
}

/// The constant parts of a quote.
fn parts(quote: &str) -> Vec<String> {
    let mut text = String::new();
    for word in quote.split(' ') {
        // A field ends the message.
        if word.split_once('=').is_some_and(|(key, _)| is_key(key)) {
            break;
        }
        text.push_str(word);
        text.push(' ');
    }
    // Text between backticks is a value.
    let text = text.split('`').step_by(2).collect::<Vec<_>>().join("…").replace(": ", "…");
    let parts = text.split(|c: char| c == '…' || c.is_ascii_digit());
    let parts = parts.map(|part| part.trim_matches([' ', ',', ':', ';', '(', ')', '[', ']', '"', '.']));
    parts.filter(|part| part.contains(' ')).map(str::to_owned).collect()
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// The string literals of the crates' sources, without those of tests.
fn literals() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let crates = std::fs::read_dir(root().join("crates")).expect("crates/").flatten();
    let mut folders: Vec<PathBuf> = crates.map(|entry| entry.path().join("src")).collect();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if name == "tests" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path).expect("a source file");
                let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                found.extend(literals_of(code));
            }
        }
    }
    found
}

/// The string literals of Rust code, with escapes of quotes and line ends resolved.
fn literals_of(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let from = &rest[at..];
        rest = if from.starts_with("//") {
            &from[from.find('\n').unwrap_or(from.len())..]
        } else if let Some(after) = from.strip_prefix("'\"'").or(from.strip_prefix("'\\\"'")) {
            after
        } else if let Some(quoted) = from.strip_prefix('"') {
            let hashes = rest[..at].len() - rest[..at].trim_end_matches('#').len();
            let raw = rest[..at].trim_end_matches('#').ends_with('r');
            let (literal, after) = if raw { raw_literal(quoted, hashes) } else { literal(quoted) };
            found.push(literal);
            after
        } else {
            &from[1..]
        };
    }
    found
}

fn raw_literal(text: &str, hashes: usize) -> (String, &str) {
    let end = format!("\"{}", "#".repeat(hashes));
    let (literal, after) = text.split_once(&end).unwrap_or((text, ""));
    (literal.to_owned(), after)
}

fn literal(text: &str) -> (String, &str) {
    let mut literal = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (literal, &text[at + 1..]),
            '\\' => match chars.next() {
                // A line that continues: its indentation does not belong to the literal.
                Some((_, '\n')) => {
                    let spaces = chars.as_str().len() - chars.as_str().trim_start().len();
                    (0..spaces).for_each(|_| _ = chars.next());
                }
                Some((_, escaped)) => literal.push(escaped),
                None => break,
            },
            c => literal.push(c),
        }
    }
    (literal, "")
}

/// The parts of quotes that no literal contains.
fn unknown(quotes: &[&str], literals: &BTreeSet<String>) -> Vec<String> {
    let parts = quotes.iter().flat_map(|quote| parts(quote));
    parts.filter(|part| !literals.iter().any(|literal| literal.contains(part.as_str()))).collect()
}

#[test]
fn quoted_log_messages_are_in_the_source() {
    let literals = literals();
    let (mut quoted, mut wrong) = (0, Vec::new());
    for (name, page) in pages() {
        let quotes = [in_code_blocks(&page), in_table(&page)].concat();
        quoted += quotes.iter().map(|quote| parts(quote).len()).sum::<usize>();
        wrong.extend(unknown(&quotes, &literals).into_iter().map(|part| format!("{name}: {part}")));
    }
    assert!(quoted > 25, "only {quoted} parts of quotes were found");
    assert!(wrong.is_empty(), "quoted, and not in the source: {wrong:#?}");
}

#[test]
fn a_changed_message_is_found() {
    let literals = literals_of(
        "// \"a comment\"\ntracing::warn!(mode, \"rules changed by {process}; \\\n    repairing\");\n\
         let quote = '\"'; let raw = r#\"the set \"x\" is full\"#;",
    );
    assert_eq!(literals, ["rules changed by {process}; repairing", "the set \"x\" is full"]);
    let literals = literals.into_iter().collect();
    let page = "Text\n\n```\nW0101 00:00:00.500000   1 a.rs:1] \"rules changed by …\" mode=x\nE0101 00:00:00.500000   1 a.rs:1] \
                the set is full count=1\n$ ls\n```\nW0101 00:00:00.500000   1 a.rs:1] outside of a block\n";
    let quotes = in_code_blocks(page);
    assert_eq!(quotes, ["\"rules changed by …\" mode=x", "the set is full count=1"]);
    assert_eq!(unknown(&quotes, &literals), ["the set is full"]);
    let page = "# Page\n\n## Log messages\n\n| message | meaning |\n| --- | --- |\n| `a b: …`, `… c d` | e |\n\n## Next\n\n| `f g` | h |\n";
    assert_eq!(in_table(page), ["a b: …", "… c d"]);
    assert_eq!(parts("a b 25 c d, … e f: `i j` k l x=1 g h"), ["a b", "c d", "e f", "k l"]);
}
