//! The measured figures, printed as a table and written as JSON.

use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

/// The measured figures.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    key: String,
    label: String,
    value: f64,
    unit: &'static str,
    /// The limit that the value should keep.
    goal: Option<Goal>,
}

/// The units that figures have.
const UNITS: [&str; 11] = ["", "s", "ms", "µs", "/s", "×", "KB", "MB", "GB/s", "s/GB", "core"];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    fn parse(text: &str) -> Option<Goal> {
        let (sign, limit) = text.split_once(' ')?;
        let limit = limit.parse().ok()?;
        Some(if sign == "≤" { Goal::AtMost(limit) } else { Goal::AtLeast(limit) })
    }

    fn met(self, value: f64) -> bool {
        match self {
            Goal::AtMost(limit) => value <= limit,
            Goal::AtLeast(limit) => value >= limit,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtMost(limit) => write!(f, "≤ {limit}"),
            Goal::AtLeast(limit) => write!(f, "≥ {limit}"),
        }
    }
}

impl Report {
    pub(crate) fn add(&mut self, key: &str, label: impl Into<String>, value: f64, unit: &'static str) {
        self.rows.push(Row { key: key.to_owned(), label: label.into(), value, unit, goal: None });
    }

    /// Adds a row with a goal.
    pub(crate) fn add_with_goal(
        &mut self,
        key: &str,
        label: impl Into<String>,
        value: f64,
        unit: &'static str,
        goal: Goal,
    ) {
        self.rows.push(Row { key: key.to_owned(), label: label.into(), value, unit, goal: Some(goal) });
    }

    pub(crate) fn get(&self, key: &str) -> Option<f64> {
        self.rows.iter().find(|r| r.key == key).map(|r| r.value)
    }

    /// The points of a plot's line: the values of `{prefix}_{size}`.
    pub(crate) fn points(&self, prefix: &str, sizes: &[usize]) -> Vec<(f64, f64)> {
        let value = |size: &usize| Some((*size as f64, self.get(&format!("{prefix}_{size}"))?));
        sizes.iter().filter_map(value).collect()
    }

    /// Adds the ratios that compare sizes.
    pub(crate) fn add_size_ratios(&mut self) {
        for kind in ["replaced", "scaled"] {
            if let (Some(small), Some(large)) =
                (self.get(&format!("change_{kind}_1000")), self.get(&format!("change_{kind}_50000")))
            {
                let label = format!("one endpoint {kind}: 50,000 Services against 1,000");
                self.add_with_goal(
                    &format!("change_{kind}_ratio"),
                    label,
                    large / small,
                    "×",
                    Goal::AtMost(3.0),
                );
            }
        }
    }

    /// Adds the rows that another run wrote.
    pub(crate) fn read(&mut self, path: &Path) -> std::io::Result<()> {
        let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        for row in rows {
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let unit = UNITS.iter().find(|unit| **unit == text("unit")).copied().unwrap_or_default();
            let goal = Goal::parse(&text("goal"));
            let value = row["value"].as_f64().unwrap_or(f64::NAN);
            self.rows.push(Row { key: text("key"), label: text("what"), value, unit, goal });
        }
        Ok(())
    }

    pub(crate) fn write(&self, path: &Path) -> std::io::Result<()> {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|r| {
                let goal = r.goal.map(|g| g.to_string());
                let met = r.goal.map(|g| g.met(r.value));
                json!({"key": r.key, "what": r.label, "value": r.value, "unit": r.unit, "goal": goal, "met": met})
            })
            .collect();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|r| r.label.chars().count()).max().unwrap_or(0);
        for row in &self.rows {
            let digits = if row.value.abs() >= 100.0 { 0 } else { 2 };
            write!(f, "{:width$}  {:>10.digits$} {:4}", row.label, row.value, row.unit)?;
            if let Some(goal) = row.goal {
                write!(f, "  {goal:10} {}", if goal.met(row.value) { "ok" } else { "MISSED" })?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
