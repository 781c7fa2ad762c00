//! Selectors of labels: `app=web,tier in (a, b),!old`.

use super::SelectorError;
use crate::validation::names::{label_value, qualified_name};
use std::iter::Peekable;
use std::vec::IntoIter;

/// Operators that follow a key, as messages list them.
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

/// Conditions on labels, all of which have to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    condition: Condition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    /// Reads a selector. An empty one selects everything.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        Parser { tokens: tokens(text).into_iter().peekable() }
            .selector()
            .map(LabelSelector)
            .map_err(SelectorError)
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it selects an object with these labels.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| {
            let value = label(&requirement.key);
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match &requirement.condition {
                Condition::Exists => value.is_some(),
                Condition::Missing => value.is_none(),
                Condition::In(values) => value.is_some_and(|value| values.iter().any(|known| known == value)),
                Condition::NotIn(values) => {
                    !value.is_some_and(|value| values.iter().any(|known| known == value))
                }
                Condition::Greater(limit) => number().is_some_and(|number| number > *limit),
                Condition::Less(limit) => number().is_some_and(|number| number < *limit),
            }
        })
    }
}

/// The words and signs of a selector.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_sign = |c: char| matches!(c, '(' | ')' | ',' | '!' | '=' | '<' | '>');
        let length = match first {
            _ if rest.starts_with("==") || rest.starts_with("!=") => 2,
            first if is_sign(first) => 1,
            _ => rest.find(|c: char| is_sign(c) || c.is_ascii_whitespace()).unwrap_or(rest.len()),
        };
        let (token, left) = rest.split_at(length);
        tokens.push(token.to_owned());
        rest = left.trim_start();
    }
    tokens
}

/// Whether a token is a word, and not a sign.
fn is_word(token: &str) -> bool {
    !matches!(token, "" | "(" | ")" | "," | "!" | "=" | "==" | "!=" | "<" | ">")
}

/// Reads tokens. After the last one there are empty ones.
struct Parser {
    tokens: Peekable<IntoIter<String>>,
}

impl Parser {
    fn peek(&mut self) -> &str {
        self.tokens.peek().map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        self.tokens.next().unwrap_or_default()
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                "" => return Ok(requirements),
                token if token == "!" || is_word(token) => {}
                other => return Err(format!("found '{other}', expected: !, identifier, or 'end of string'")),
            }
            let requirement = self.requirement();
            requirements.push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
            match self.next().as_str() {
                "" => return Ok(requirements),
                "," => match self.peek() {
                    token if token == "!" || is_word(token) => {}
                    other => return Err(format!("found '{other}', expected: identifier after ','")),
                },
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let is_negated = self.peek() == "!";
        if is_negated {
            self.next();
        }
        let key = self.next();
        if !is_word(&key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        check(&key, "<nil>", qualified_name(&key))?;
        if is_negated {
            return Ok(Requirement { key, condition: Condition::Missing });
        }
        if matches!(self.peek(), "" | ",") {
            return Ok(Requirement { key, condition: Condition::Exists });
        }
        let operator = self.next();
        let condition = match operator.as_str() {
            "in" => Condition::In(self.values()?),
            "notin" => Condition::NotIn(self.values()?),
            "=" | "==" => Condition::In(vec![self.value()?]),
            "!=" => Condition::NotIn(vec![self.value()?]),
            ">" => Condition::Greater(number(&self.value()?)?),
            "<" => Condition::Less(number(&self.value()?)?),
            other => return Err(format!("found '{other}', expected: {OPERATORS}")),
        };
        if let Condition::In(values) | Condition::NotIn(values) = &condition {
            for (index, value) in values.iter().enumerate() {
                check(value, &format!("values[{index}][{key}]"), label_value(value))?;
            }
        }
        Ok(Requirement { key, condition })
    }

    /// One value; none is the empty one.
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            "" | "," => Ok(String::new()),
            token if is_word(token) => Ok(self.next()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// Values in parentheses.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = Vec::new();
        loop {
            match self.peek() {
                "," | ")" => values.push(String::new()),
                token if is_word(token) => values.push(self.next()),
                other => return Err(format!("found '{other}', expected: ',', ')' or identifier")),
            }
            match self.next().as_str() {
                ")" => break,
                "," => {}
                other => return Err(format!("found '{other}', expected: ',' or ')'")),
            }
        }
        values.sort_unstable();
        values.dedup();
        Ok(values)
    }
}

fn number(text: &str) -> Result<i64, String> {
    let wrong = || {
        format!("values[0]: Invalid value: {text:?}: for 'Gt', 'Lt' operators, the value must be an integer")
    };
    text.parse().map_err(|_| wrong())
}

fn check(value: &str, field: &str, wrong: Vec<String>) -> Result<(), String> {
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("{field}: Invalid value: {value:?}: {}", wrong.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keywords_are_words_where_a_key_or_a_value_is_expected() {
        let selector = LabelSelector::parse("in in (notin, in),notin notin ()").expect("a selector");
        let with = |value: &'static str| move |name: &str| (name == "in").then_some(value);
        assert!(selector.matches(with("notin")) && selector.matches(with("in")));
        assert!(!selector.matches(with("x")));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-c!=<>(), /.-]{0,24}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                selector.matches(|_| Some("a"));
                selector.matches(|_| None);
            }
        }
    }
}
