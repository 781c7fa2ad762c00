//! From OpenMetrics, which the library writes, to the older text format, which kube-proxy serves.
//!
//! The two differ in what names a counter: OpenMetrics declares `x` and samples `x_total`; the older format, and so
//! every dashboard made for kube-proxy, declares and samples `x_total`. It has no end marker either.

/// What `/metrics` says its text is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Rewrites declarations of counters and drops the end marker.
pub(super) fn from_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1024);
    // HELP comes before TYPE, and only TYPE tells whether the name gets its ending.
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        if line == "# EOF" {
            continue;
        }
        if let Some((name, words)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help = Some((name, words));
            continue;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            push(&mut out, &[line]);
            continue;
        };
        let ending = if kind == "counter" { "_total" } else { "" };
        if let Some((helped, words)) = help.take() {
            push(&mut out, &["# HELP ", helped, ending, " ", words]);
        }
        push(&mut out, &["# TYPE ", name, ending, " ", kind]);
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
    fn a_counter_is_declared_by_the_name_it_is_sampled_by() {
        let open = "# HELP a Words.\n# TYPE a counter\na_total{x=\"1\"} 2\n# HELP b_total More.\n# TYPE b_total gauge\nb_total 1\n# EOF\n";
        let text = "# HELP a_total Words.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n# HELP b_total More.\n# TYPE b_total gauge\nb_total 1\n";
        assert_eq!(from_open_metrics(open), text);
    }
}
