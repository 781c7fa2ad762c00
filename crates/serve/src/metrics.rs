//! Metrics in the text format that kube-proxy serves, and metrics of the process itself.

mod exposition;
mod process;

pub use exposition::CONTENT_TYPE;
pub use process::ProcessCollector;

use prometheus_client::registry::Registry;

/// The text of a registry, in the format of [`CONTENT_TYPE`].
pub fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => exposition::from_open_metrics(&text),
        // Writing to a string cannot fail; if it did, Prometheus would see a scrape without samples.
        Err(std::fmt::Error) => String::new(),
    }
}
