//! The ratios as SVG: a row for each quantity, a mark for each mode, on a logarithmic axis around 1.

use super::comparison::{Comparison, Metric};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 370.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 112.0;
const ROW: f64 = 30.0;
const BOTTOM: f64 = 60.0;
/// Colours that can be distinguished with colour blindness (Okabe and Ito).
const COLOURS: [&str; 6] = ["#000000", "#0072b2", "#e69f00", "#cc79a7", "#009e73", "#d55e00"];

/// The part of the axis that is drawn, in powers of ten.
struct Axis {
    least: i32,
    most: i32,
}

impl Axis {
    /// Whole powers of ten around all ratios and 1.
    fn around(ratios: impl Iterator<Item = f64>) -> Axis {
        let (mut least, mut most) = (-1, 1);
        for ratio in ratios {
            least = least.min(ratio.log10().floor() as i32);
            most = most.max(ratio.log10().ceil() as i32);
        }
        Axis { least, most }
    }

    fn x(&self, ratio: f64) -> f64 {
        let share = (ratio.log10() - f64::from(self.least)) / f64::from(self.most - self.least);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }
}

/// Draws all ratios; zero and "not in time" have no place on the axis and are in the table only.
pub(super) fn svg(comparison: &Comparison) -> String {
    let marks: Vec<(&str, Metric, f64)> = comparison
        .rows
        .iter()
        .filter_map(|row| Some((row.group.as_str(), row.metric, row.ratio().filter(|ratio| *ratio > 0.0)?)))
        .collect();
    let mut metrics: Vec<Metric> = Vec::new();
    for (_, metric, _) in &marks {
        if !metrics.contains(metric) {
            metrics.push(*metric);
        }
    }
    let mut groups = comparison.groups();
    groups.retain(|group| marks.iter().any(|(name, ..)| name == group));
    let axis = Axis::around(marks.iter().map(|(.., ratio)| *ratio));
    let height = TOP + ROW * metrics.len() as f64 + BOTTOM;
    let mut out = String::new();
    // Writing into memory does not fail.
    let mut draw = |line: String| writeln!(out, "{line}").ok();
    draw(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"##
    ));
    draw(r##"<rect width="100%" height="100%" fill="#ffffff"/>"##.to_owned());
    draw(format!(r##"<text x="20" y="28" font-size="16">{}</text>"##, comparison.conditions.title()));
    let (mut x, mut y) = (20.0, 52.0);
    for (group, colour) in groups.iter().zip(COLOURS.iter().cycle()) {
        let width = 34.0 + 7.0 * group.chars().count() as f64;
        if x + width > WIDTH {
            (x, y) = (20.0, y + 20.0);
        }
        draw(format!(r##"<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>"##));
        draw(format!(r##"<text x="{}" y="{}">{group}</text>"##, x + 10.0, y + 4.0));
        x += width;
    }
    let bottom = height - BOTTOM;
    for power in axis.least..=axis.most {
        let (x, label) = (axis.x(10f64.powi(power)), 10f64.powi(power));
        let (colour, width) = if power == 0 { ("#000000", 1.5) } else { ("#dddddd", 1.0) };
        let top = TOP - 15.0;
        draw(format!(
            r##"<line x1="{x:.1}" y1="{top}" x2="{x:.1}" y2="{bottom}" stroke="{colour}" stroke-width="{width}"/>"##
        ));
        draw(format!(r##"<text x="{x:.1}" y="{}" text-anchor="middle">{label} ×</text>"##, bottom + 20.0));
    }
    for (i, metric) in metrics.iter().enumerate() {
        let y = TOP + ROW * i as f64;
        draw(format!(
            r##"<text x="{}" y="{}" text-anchor="end">{}</text>"##,
            LEFT - 12.0,
            y + 4.0,
            metric.label()
        ));
        for (group, _, ratio) in marks.iter().filter(|(_, of, _)| of == metric) {
            let colour =
                groups.iter().position(|g| g == group).map_or("#000000", |n| COLOURS[n % COLOURS.len()]);
            let x = axis.x(*ratio);
            draw(format!(
                r##"<circle cx="{x:.1}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.85"><title>{group}: {ratio:.3} ×</title></circle>"##
            ));
        }
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    draw(format!(
        r##"<text x="{middle}" y="{}" text-anchor="middle">Portway / kube-proxy; left of 1: Portway has the smaller figure</text>"##,
        height - 15.0
    ));
    draw("</svg>".to_owned());
    out
}
