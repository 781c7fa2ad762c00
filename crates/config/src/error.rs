//! What is wrong with a configuration, and where: one value per mistake, made to be shown as it is.
//!
//! `config.yaml:12: nftables.masqueradBit: unknown field, did you mean "masqueradeBit"?`

use std::fmt;
use std::sync::Arc;

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A configuration file.
    File {
        /// The file's name as it was given.
        name: Arc<str>,
        /// The line, counted from one; zero when it is not known.
        line: u64,
    },
    /// A flag on the command line, with its dashes.
    Flag(&'static str),
}

/// One mistake in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where it was made.
    pub origin: Origin,
    /// The field, with the sections it stands in: `nftables.masqueradeBit`. Empty for the document as a whole.
    pub field: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is neither YAML nor JSON.
    #[error("cannot be read: {0}")]
    Syntax(String),
    /// No such field.
    #[error("unknown field{}", did_you_mean(nearest))]
    UnknownField {
        /// The right name most like the wrong one, if one is near.
        nearest: Option<&'static str>,
    },
    /// The field occurs twice.
    #[error("is set twice, first on line {first_line}")]
    Duplicate {
        /// Where it was first set.
        first_line: u64,
    },
    /// A field that must be there is not.
    #[error("is missing, it must be {expected}")]
    Missing {
        /// What it must be.
        expected: &'static str,
    },
    /// A value of the wrong kind.
    #[error("should be {expected}, but is {found}")]
    WrongType {
        /// The kind that is right.
        expected: &'static str,
        /// The kind that was found.
        found: &'static str,
    },
    /// The right kind, but not a value that means anything; `why` continues the sentence.
    #[error("{value:?} {why}")]
    Invalid {
        /// The value as typed.
        value: String,
        /// What is wrong with it.
        why: String,
    },
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!(", did you mean {name:?}?")).unwrap_or_default()
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            // A flag's name says all that the field's path would.
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

/// The candidate most like `wrong`, if it is like enough to be worth suggesting: a third of its letters may differ.
pub(crate) fn nearest(wrong: &str, candidates: &[&'static str]) -> Option<&'static str> {
    let wrong = wrong.to_lowercase();
    // Longer names than any field has are not slips; comparing them would cost the square of their length.
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
    fn suggests_only_what_is_near() {
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
    fn reads_as_one_line() {
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
                Problem::Invalid { value: "nft".into(), why: "is not a proxy mode".into() },
                r#"--proxy-mode: "nft" is not a proxy mode"#,
            ),
        ] {
            let error = ConfigError { origin, field: field.to_owned(), problem };
            assert_eq!(error.to_string(), text);
        }
    }
}
