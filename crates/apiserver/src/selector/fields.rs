//! Selectors of fields: `metadata.name=web,spec.type!=ExternalName`.

use super::SelectorError;

/// The fields of every kind by which objects can be selected.
const OF_ALL: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// The fields of a kind by which its objects can be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selectable {
    /// Those of every kind.
    OfAll,
    /// Those, and these.
    And(&'static [&'static str]),
}

/// Conditions on fields, all of which have to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Reads a selector of objects of a kind. An empty one selects everything.
    pub fn parse(text: &str, selectable: Selectable) -> Result<FieldSelector, SelectorError> {
        let mut terms = Vec::new();
        for term in split(text) {
            let unreadable =
                || SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'"));
            let at = term.find(['=', '!']).ok_or_else(unreadable)?;
            let (field, rest) = term.split_at(at);
            let (value, equal) = match rest {
                _ if rest.starts_with("!=") => (&rest[2..], false),
                _ if rest.starts_with("==") => (&rest[2..], true),
                _ if rest.starts_with('=') => (&rest[1..], true),
                _ => return Err(unreadable()),
            };
            // A term of nothing selects everything.
            if field.is_empty() && value.is_empty() {
                continue;
            }
            selectable.check(field)?;
            terms.push(Term { field: field.to_owned(), value: unescaped(value), equal });
        }
        Ok(FieldSelector(terms))
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it selects an object with these values of fields.
    pub fn matches(&self, value: impl Fn(&str) -> String) -> bool {
        self.0.iter().all(|term| (value(&term.field) == term.value) == term.equal)
    }

    /// The value that a field must have for an object to be selected.
    pub fn required(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }
}

impl Selectable {
    fn check(self, field: &str) -> Result<(), SelectorError> {
        match self {
            _ if OF_ALL.contains(&field) => Ok(()),
            Selectable::And(fields) if fields.contains(&field) => Ok(()),
            Selectable::And(_) => Err(SelectorError(format!("field label not supported: {field}"))),
            Selectable::OfAll => Err(SelectorError(format!(
                "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            ))),
        }
    }
}

/// The terms between commas that are not escaped.
fn split(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms.retain(|term| !term.is_empty());
    terms
}

/// A value without the backslashes before commas, equals signs and backslashes.
fn unescaped(text: &str) -> String {
    let mut chars = text.chars();
    let mut value = String::new();
    while let Some(c) = chars.next() {
        value.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    value
}
