//! Counts the requests to the API server, for the metrics that client-go has (`rest_client_…`).

use http::Method;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The upper bounds of client-go's buckets, in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The requests so far.
#[derive(Debug)]
pub struct RequestStatistics {
    host: String,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// By method and status code; `<error>` if there was no response.
    requests: BTreeMap<(String, String), u64>,
    /// By method: until the head of the response arrived.
    durations: BTreeMap<String, Histogram>,
    /// By method: the wait for the rate limit.
    waits: BTreeMap<String, Histogram>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        for (bucket, bound) in self.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
    }
}

impl RequestStatistics {
    pub(super) fn new(host: &str) -> RequestStatistics {
        RequestStatistics { host: host.to_owned(), counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how long a request waited for the rate limit.
    pub(super) fn waited(&self, method: &Method, wait: Duration) {
        self.counts().waits.entry(method.to_string()).or_default().observe(wait);
    }

    /// Records a response, or that there was none.
    pub(super) fn answered(&self, method: &Method, status: Option<u16>, took: Duration) {
        let code = status.map_or("<error>".to_owned(), |status| status.to_string());
        let mut counts = self.counts();
        *counts.requests.entry((method.to_string(), code)).or_default() += 1;
        counts.durations.entry(method.to_string()).or_default().observe(took);
    }

    /// The metrics in the Prometheus text format.
    pub fn exposition(&self) -> String {
        let (host, counts) = (&self.host, self.counts());
        let mut text = String::new();
        let name = "rest_client_requests_total";
        declare(&mut text, name, "counter", "Requests to the API server, by status code.");
        for ((method, code), count) in &counts.requests {
            _ = writeln!(text, "{name}{{code=\"{code}\",host=\"{host}\",method=\"{method}\"}} {count}");
        }
        for (name, help, histograms) in [
            (
                "rest_client_request_duration_seconds",
                "How long the API server took to answer.",
                &counts.durations,
            ),
            (
                "rest_client_rate_limiter_duration_seconds",
                "How long requests waited for the client's rate limit.",
                &counts.waits,
            ),
        ] {
            declare(&mut text, name, "histogram", help);
            for (verb, histogram) in histograms {
                let labels = format!("host=\"{host}\",verb=\"{verb}\"");
                for (bucket, bound) in histogram.buckets.iter().zip(BUCKETS) {
                    _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {bucket}");
                }
                let Histogram { count, sum, .. } = histogram;
                _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
                _ = writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}");
            }
        }
        text
    }
}

fn declare(text: &mut String, name: &str, kind: &str, help: &str) {
    _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_method_and_code() {
        let statistics = RequestStatistics::new("api:6443");
        statistics.waited(&Method::GET, Duration::ZERO);
        statistics.answered(&Method::GET, Some(200), Duration::from_millis(30));
        statistics.answered(&Method::GET, Some(200), Duration::from_secs(90));
        statistics.answered(&Method::POST, None, Duration::from_secs(1));
        let text = statistics.exposition();
        for line in [
            r#"rest_client_requests_total{code="200",host="api:6443",method="GET"} 2"#,
            r#"rest_client_requests_total{code="<error>",host="api:6443",method="POST"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="api:6443",verb="GET",le="0.025"} 0"#,
            r#"rest_client_request_duration_seconds_bucket{host="api:6443",verb="GET",le="0.1"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="api:6443",verb="GET",le="+Inf"} 2"#,
            r#"rest_client_request_duration_seconds_count{host="api:6443",verb="GET"} 2"#,
            r#"rest_client_rate_limiter_duration_seconds_count{host="api:6443",verb="GET"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\nnot in\n{text}");
        }
    }
}
