//! A strict parser of `/metrics`.

use std::collections::{BTreeMap, HashSet};

/// Samples by name and labels, and the types of the metric families.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    samples: BTreeMap<String, f64>,
    families: BTreeMap<String, String>,
}

impl Metrics {
    /// Reads the text format, version 0.0.4. Every sample must belong to a family that was declared before it, and
    /// occur once.
    pub(crate) fn parse(text: &str) -> Result<Metrics, String> {
        let mut metrics = Metrics::default();
        let mut described = HashSet::new();
        for line in text.lines() {
            let error = |why: &str| format!("{why}: {line}");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let name = rest.split(' ').next().unwrap_or_default();
                if !described.insert(name.to_owned()) {
                    return Err(error("described twice"));
                }
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| error("no type"))?;
                if metrics.families.insert(name.to_owned(), kind.to_owned()).is_some() {
                    return Err(error("declared twice"));
                }
            } else if !line.starts_with('#') && !line.is_empty() {
                let (series, value) = line.rsplit_once(' ').ok_or_else(|| error("no value"))?;
                let value = value.parse().map_err(|_| error("not a number"))?;
                metrics.family_of(series).ok_or_else(|| error("not declared"))?;
                if metrics.samples.insert(sorted(series), value).is_some() {
                    return Err(error("sampled twice"));
                }
            }
        }
        Ok(metrics)
    }

    /// The type of a family; empty if there is no such family.
    pub(crate) fn kind(&self, family: &str) -> &str {
        self.families.get(family).map_or("", String::as_str)
    }

    /// The value of a series, with its labels in any order; 0 if there is no such series yet. A family without series is
    /// not exposed.
    pub(crate) fn value(&self, series: &str) -> f64 {
        self.samples.get(&sorted(series)).copied().unwrap_or(0.0)
    }

    fn family_of(&self, series: &str) -> Option<&str> {
        let name = series.split('{').next().unwrap_or_default();
        let endings = ["_bucket", "_sum", "_count"];
        let histogram =
            endings.iter().find_map(|e| name.strip_suffix(e)).filter(|n| self.kind(n) == "histogram");
        let name = histogram.unwrap_or(name);
        self.families.get_key_value(name).map(|(name, _)| name.as_str())
    }
}

/// A series with its labels sorted, so that the order in which they are written does not matter.
fn sorted(series: &str) -> String {
    let Some((name, labels)) = series.strip_suffix('}').and_then(|s| s.split_once('{')) else {
        return series.to_owned();
    };
    // No label value of Portway's metrics has a comma.
    let mut labels: Vec<&str> = labels.split(',').collect();
    labels.sort_unstable();
    format!("{name}{{{}}}", labels.join(","))
}
