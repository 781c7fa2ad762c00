//! Converts OpenMetrics, which the library writes, to the older text format, which kube-proxy serves.
//!
//! The two differ in the names of counters: OpenMetrics declares `x` and has samples of `x_total`; the older format,
//! which kube-proxy's users expect, declares `x_total` too. It has no end marker either.

/// The content type of `/metrics`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Rewrites the declarations of counters and removes the end marker.
pub(super) fn from_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1024);
    // HELP precedes TYPE, and only TYPE shows whether the name needs the suffix.
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        if line == "# EOF" {
            continue;
        }
        if let Some((name, help_text)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help = Some((name, help_text));
            continue;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            push(&mut out, &[line]);
            continue;
        };
        let suffix = if kind == "counter" { "_total" } else { "" };
        if let Some((helped, help_text)) = help.take() {
            push(&mut out, &["# HELP ", helped, suffix, " ", help_text]);
        }
        push(&mut out, &["# TYPE ", name, suffix, " ", kind]);
    }
    out
}

fn push(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::from_open_metrics;

    #[test]
    fn a_counter_is_declared_with_the_name_of_its_samples() {
        let open = "# HELP a Words.\n# TYPE a counter\na_total{x=\"1\"} 2\n# HELP b_total More.\n# TYPE b_total gauge\nb_total 1\n# EOF\n";
        let text = "# HELP a_total Words.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n# HELP b_total More.\n# TYPE b_total gauge\nb_total 1\n";
        assert_eq!(from_open_metrics(open), text);
    }
}
