//! Names of objects, labels and ports.

use super::Causes;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const NAME_PART: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Characters of a DNS label and of the name part of a label at most.
const MAX_LABEL: usize = 63;
/// Characters of a DNS subdomain at most.
const MAX_SUBDOMAIN: usize = 253;
/// Characters of the name of a port at most.
const MAX_PORT_NAME: usize = 15;

/// Whether a text has only these characters, and begins and ends with a letter or a digit.
fn is_word(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.into_iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric() && allowed(byte)))
        && text.bytes().all(allowed)
}

fn is_label(text: &str) -> bool {
    is_word(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_name_part(text: &str) -> bool {
    is_word(text, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// What is wrong with a DNS label.
pub fn dns_label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > MAX_LABEL {
        wrong.push(format!("must be no more than {MAX_LABEL} characters"));
    }
    if !is_label(text) {
        // A name with dots may have been meant as a subdomain.
        let has_dots = text.contains('.') && dns_subdomain(text).is_empty();
        wrong.push(if has_dots { "must not contain dots" } else { LABEL }.to_owned());
    }
    wrong
}

/// What is wrong with a DNS subdomain.
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > MAX_SUBDOMAIN {
        wrong.push(format!("must be no more than {MAX_SUBDOMAIN} characters"));
    }
    if !text.split('.').all(is_label) {
        wrong.push(SUBDOMAIN.to_owned());
    }
    wrong
}

/// What is wrong with the key of a label or an annotation.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(dns_subdomain(prefix).into_iter().map(|why| format!("prefix part {why}")));
            }
            name
        }
        _ => {
            let prefix = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {NAME_PART} {prefix}")];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL {
        wrong.push(format!("name part must be no more than {MAX_LABEL} bytes"));
    }
    if !is_name_part(name) {
        wrong.push(format!("name part {NAME_PART}"));
    }
    wrong
}

/// What is wrong with the value of a label.
pub fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > MAX_LABEL {
        wrong.push(format!("must be no more than {MAX_LABEL} bytes"));
    }
    if !text.is_empty() && !is_name_part(text) {
        wrong.push(VALUE.to_owned());
    }
    wrong
}

/// What is wrong with the name of a port.
pub fn port_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > MAX_PORT_NAME {
        wrong.push(format!("must be no more than {MAX_PORT_NAME} characters"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// Checks labels, or a selector of them.
pub fn check_labels<'a>(field: &str, labels: impl Iterator<Item = (&'a str, &'a str)>, causes: &mut Causes) {
    for (key, value) in labels {
        causes.invalid_for(field, key, qualified_name(key));
        causes.invalid_for(field, value, label_value(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_their_limits() {
        let long = "a".repeat(63);
        assert!(
            dns_label(&long).is_empty() && qualified_name(&long).is_empty() && label_value(&long).is_empty()
        );
        let longer = "a".repeat(64);
        assert_eq!(
            [dns_label(&longer).len(), qualified_name(&longer).len(), label_value(&longer).len()],
            [1; 3]
        );
        assert!(dns_subdomain(&[&*long, &long, &long, &"a".repeat(61)].join(".")).is_empty());
        for good in ["a", "0", "a-b", "a.b/C_d", "x/y.z"] {
            assert!(qualified_name(good).is_empty(), "{good}");
        }
        for bad in ["", "/a", "a/", "-a", "a_", "a/b/c", "A.b/c", "ä"] {
            assert!(!qualified_name(bad).is_empty(), "{bad}");
        }
        assert!(label_value("").is_empty());
        assert!(port_name("http-2").is_empty());
        assert_eq!(port_name("").len(), 1);
    }
}
