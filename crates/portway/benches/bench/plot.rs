//! A line plot as SVG, with a logarithmic horizontal axis.

use std::fmt;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 140.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Colours that can be distinguished with colour blindness (Okabe and Ito).
const COLOURS: [&str; 4] = ["#000000", "#0072b2", "#e69f00", "#cc79a7"];

/// Lines of values by size.
#[derive(Debug)]
pub(crate) struct Plot {
    title: &'static str,
    x_label: &'static str,
    y_label: &'static str,
    lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Plot {
    pub(crate) fn new(title: &'static str, x_label: &'static str, y_label: &'static str) -> Plot {
        Plot { title, x_label, y_label, lines: Vec::new() }
    }

    pub(crate) fn line(&mut self, name: &str, points: Vec<(f64, f64)>) {
        self.lines.push((name.to_owned(), points));
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.lines.iter().flat_map(|(_, points)| points.iter().copied())
    }

    /// The horizontal position of a size.
    fn x(&self, size: f64) -> f64 {
        let sizes = || self.points().map(|p| p.0.max(1.0).ln());
        let (least, most) = (sizes().fold(f64::MAX, f64::min), sizes().fold(f64::MIN, f64::max));
        LEFT + (size.max(1.0).ln() - least) / (most - least).max(f64::EPSILON) * (WIDTH - LEFT - RIGHT)
    }

    /// The vertical position of a value; the axis begins at zero.
    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.axis_end() * (HEIGHT - TOP - BOTTOM)
    }

    /// The end of the vertical axis: a round number that no value exceeds.
    fn axis_end(&self) -> f64 {
        let most = self.points().map(|p| p.1).fold(1.0, f64::max);
        let step = 10f64.powf(most.log10().floor());
        (most / step).ceil() * step
    }
}

impl fmt::Display for Plot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">"##
        )?;
        writeln!(f, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##)?;
        writeln!(f, r##"<text x="{LEFT}" y="28" font-size="16">{}</text>"##, self.title)?;
        for i in 0..=4 {
            let value = self.axis_end() * f64::from(i) / 4.0;
            let (y, right) = (self.y(value), WIDTH - RIGHT);
            writeln!(f, r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#dddddd"/>"##)?;
            writeln!(
                f,
                r##"<text x="{}" y="{:.1}" text-anchor="end">{value:.0}</text>"##,
                LEFT - 8.0,
                y + 4.0
            )?;
        }
        let mut sizes: Vec<f64> = self.points().map(|p| p.0).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        for size in sizes {
            let (x, y) = (self.x(size), HEIGHT - BOTTOM + 20.0);
            writeln!(f, r##"<text x="{x:.1}" y="{y}" text-anchor="middle">{size:.0}</text>"##)?;
        }
        let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 15.0);
        writeln!(f, r##"<text x="{x}" y="{y}" text-anchor="middle">{}</text>"##, self.x_label)?;
        writeln!(
            f,
            r##"<text x="16" y="{0}" transform="rotate(-90 16 {0})" text-anchor="middle">{1}</text>"##,
            HEIGHT / 2.0,
            self.y_label
        )?;
        for ((_, points), colour) in self.lines.iter().zip(COLOURS) {
            let path: Vec<String> =
                points.iter().map(|p| format!("{:.1},{:.1}", self.x(p.0), self.y(p.1))).collect();
            writeln!(
                f,
                r##"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"##,
                path.join(" ")
            )?;
            for p in points {
                writeln!(
                    f,
                    r##"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"/>"##,
                    self.x(p.0),
                    self.y(p.1)
                )?;
            }
        }
        // The names of the lines, at the height of their ends, moved apart where they would overlap.
        let mut ends: Vec<(f64, &str, &str)> = self
            .lines
            .iter()
            .zip(COLOURS)
            .filter_map(|((name, points), colour)| Some((self.y(points.last()?.1), name.as_str(), colour)))
            .collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut free = TOP;
        for (y, name, colour) in ends {
            let y = y.max(free);
            free = y + 16.0;
            writeln!(
                f,
                r##"<text x="{}" y="{:.1}" fill="{colour}">{name}</text>"##,
                WIDTH - RIGHT + 10.0,
                y + 4.0
            )?;
        }
        writeln!(f, "</svg>")
    }
}
