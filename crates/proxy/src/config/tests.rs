//! Tests of the configuration as a whole: files, printing, changes while running, and the reference page.

mod docs;
mod file;
mod live;
mod print;

use super::*;

/// The text of a file: the two lines that every file must have, and `body`.
fn text(body: &str) -> String {
    format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}")
}

/// The configuration of a file with `body`.
fn config(body: &str) -> Config {
    let file = parse("test.yaml", &text(body)).unwrap_or_else(|errors| panic!("{body}\n{errors:?}"));
    merge(&ProxyFlags::default(), Some(file)).unwrap_or_else(|errors| panic!("{body}\n{errors:?}")).0
}
