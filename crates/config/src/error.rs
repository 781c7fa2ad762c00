//! Errors in a configuration, each with its file and line or its flag; printed as one line.
//!
//! `config.yaml:12: nftables.masqueradBit: unknown field, did you mean "masqueradeBit"?`

use std::fmt;
use std::sync::Arc;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A configuration file.
    File {
        /// The file's name as typed.
        name: Arc<str>,
        /// The line, from 1; 0 if it is not known.
        line: u64,
    },
    /// A flag on the command line, with its dashes.
    Flag(&'static str),
}

/// One error in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file and line, or the flag.
    pub origin: Origin,
    /// The field with its sections: `nftables.masqueradeBit`. Empty for the document as a whole.
    pub field: String,
    /// The error.
    pub problem: Problem,
}

/// The kinds of errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is neither YAML nor JSON.
    #[error("cannot be read: {0}")]
    Syntax(String),
    /// No such field.
    #[error("unknown field{}", did_you_mean(nearest))]
    UnknownField {
        /// The most similar valid name, if there is one.
        nearest: Option<&'static str>,
    },
    /// The field occurs twice.
    #[error("is set twice, first on line {first_line}; the last value applies")]
    Duplicate {
        /// The line where it was first set.
        first_line: u64,
    },
    /// A required field is missing.
    #[error("is missing, it must be {expected}")]
    Missing {
        /// The only valid value.
        expected: &'static str,
    },
    /// A value of the wrong kind.
    #[error("should be {expected}, but is {found}")]
    WrongType {
        /// The expected kind.
        expected: &'static str,
        /// The kind of the value.
        found: &'static str,
    },
    /// A value of the right kind that is not valid; `reason` continues a sentence that begins with the value.
    #[error("{value:?} {reason}")]
    Invalid {
        /// The value as typed.
        value: String,
        /// The reason.
        reason: String,
    },
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean {name:?}?")).unwrap_or_default()
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            // The flag identifies the setting, so the path of the field is not printed.
            Origin::Flag(flag) => return write!(f, "{flag}: {}", self.problem),
            Origin::File { name, line: 0 } => write!(f, "{name}: ")?,
            Origin::File { name, line } => write!(f, "{name}:{line}: ")?,
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}", self.problem)
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None
    }
}

/// The candidate most similar to `wrong`, if the edit distance is at most a third of its length.
pub fn nearest(wrong: &str, candidates: &[&'static str]) -> Option<&'static str> {
    let wrong = wrong.to_lowercase();
    // A name longer than that of any field is not a misspelling, and comparing it would cost the square of its length.
    if wrong.len() > 64 {
        return None;
    }
    candidates
        .iter()
        .map(|name| (distance(&wrong, &name.to_lowercase()), *name))
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Levenshtein's edit distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["masqueradeBit", "masqueradeAll", "syncPeriod", "min"];

    #[test]
    fn only_similar_names_are_suggested() {
        assert_eq!(nearest("masqueradBit", &NAMES), Some("masqueradeBit"));
        assert_eq!(nearest("masquerade_all", &NAMES), Some("masqueradeAll"));
        assert_eq!(nearest("SYNCPERIOD", &NAMES), Some("syncPeriod"));
        assert_eq!(nearest("mni", &NAMES), None);
        assert_eq!(nearest("mi", &NAMES), Some("min"));
        assert_eq!(nearest("clusterCIDR", &NAMES), None);
        assert_eq!(nearest(&"m".repeat(1_000_000), &NAMES), None);
    }

    #[test]
    fn distance_counts_edits() {
        for (a, b, edits) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("flaw", "lawn", 2)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn an_error_is_one_line() {
        let file = |line| Origin::File { name: "config.yaml".into(), line };
        let unknown = |nearest| Problem::UnknownField { nearest };
        for (origin, field, problem, text) in [
            (
                file(12),
                "nftables.masqueradBit",
                unknown(Some("masqueradeBit")),
                r#"config.yaml:12: nftables.masqueradBit: unknown field, did you mean "masqueradeBit"?"#,
            ),
            (file(3), "x", unknown(None), "config.yaml:3: x: unknown field"),
            (file(0), "", Problem::Syntax("oh".into()), "config.yaml: cannot be read: oh"),
            (
                Origin::Flag("--proxy-mode"),
                "mode",
                Problem::Invalid { value: "nft".into(), reason: "is not a proxy mode".into() },
                r#"--proxy-mode: "nft" is not a proxy mode"#,
            ),
        ] {
            let error = ConfigError { origin, field: field.to_owned(), problem };
            assert_eq!(error.to_string(), text);
        }
    }
}
