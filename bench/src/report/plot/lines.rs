//! A panel with axes, a grid, lines, and their names.

use super::svg::{Anchor, COLOURS, Svg};
use crate::report::figures::significant;

/// Room for the numbers of the axes and the title.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 30.0;
const GRID: &str = "#dddddd";

/// An axis and its ticks.
#[derive(Clone, Debug)]
pub enum Axis {
    /// Ticks as given.
    Fixed {
        /// Left or lower end.
        from: f64,
        /// Right or upper end.
        to: f64,
        /// Values and their texts.
        ticks: Vec<(f64, String)>,
    },
    /// Powers of ten, from and to as exponents.
    Log(i32, i32),
}

impl Axis {
    /// From 0 to a round number past all values.
    pub fn linear(values: impl Iterator<Item = f64>) -> Axis {
        let max = values.fold(0.0, f64::max);
        let step = round_step(if max > 0.0 { max } else { 1.0 } / 5.0);
        let count = (max / step).ceil().max(1.0) as usize;
        let ticks = (0..=count).map(|n| step * n as f64).map(|at| (at, short(at)));
        Axis::Fixed { from: 0.0, to: step * count as f64, ticks: ticks.collect() }
    }

    /// From the power of ten below all values to the one above.
    pub fn log(values: impl Iterator<Item = f64>) -> Axis {
        let (min, max) =
            values.fold((f64::INFINITY, 0f64), |(min, max), value| (min.min(value), max.max(value)));
        if max <= 0.0 {
            return Axis::Log(0, 1);
        }
        let from = min.log10().floor() as i32;
        Axis::Log(from, (max.log10().ceil() as i32).max(from + 1))
    }

    /// Where a value lies, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let share = match self {
            Axis::Fixed { from, to, .. } => (value - from) / (to - from),
            Axis::Log(from, to) => (value.log10() - f64::from(*from)) / f64::from(to - from),
        };
        share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self {
            Axis::Fixed { ticks, .. } => ticks.clone(),
            Axis::Log(from, to) => {
                (*from..=*to).map(|power| 10f64.powi(power)).map(|at| (at, short(at))).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * 0.999_999);
    power * factor.unwrap_or(10.0)
}

/// 20000 as 20 k.
fn short(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        _ if value >= 1e3 => format!("{} k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = significant(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A line with its name.
#[derive(Clone, Debug)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// In the axes' units.
    pub points: Vec<(f64, f64)>,
}

/// A diagram.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What it shows.
    pub lines: Vec<Line>,
}

impl Panel {
    /// Draws it into a rectangle.
    pub fn draw(&self, svg: &mut Svg, left: f64, top: f64, width: f64, height: f64) {
        let (x0, x1) = (left + LEFT, left + width - RIGHT);
        let (y0, y1) = (top + height - BOTTOM, top + TOP);
        let x = |value: f64| x0 + (x1 - x0) * self.x.place(value);
        let y = |value: f64| y0 + (y1 - y0) * self.y.place(value);
        svg.text_at(x0, top + 14.0, Anchor::Start, 13.0, &self.title);
        for (at, text) in self.x.ticks() {
            svg.line((x(at), y0), (x(at), y1), GRID, 1.0);
            svg.text_at(x(at), y0 + 16.0, Anchor::Middle, 11.0, &text);
        }
        for (at, text) in self.y.ticks() {
            svg.line((x0, y(at)), (x1, y(at)), GRID, 1.0);
            svg.text_at(x0 - 6.0, y(at) + 4.0, Anchor::End, 11.0, &text);
        }
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            svg.polyline(line.points.iter().map(|point| (x(point.0), y(point.1))), colour);
            let at = x1 - 110.0 * (self.lines.len() - number) as f64;
            svg.rect(at, top + 6.0, 12.0, 10.0, colour);
            svg.text_at(at + 16.0, top + 15.0, Anchor::Start, 12.0, &line.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_ends_at_a_round_number_past_all_values() {
        for (max, end) in [(0.0, 0.2), (1.0, 1.0), (7.3, 8.0), (101.0, 150.0), (9999.0, 10_000.0)] {
            let Axis::Fixed { to, ticks, .. } = Axis::linear([0.0, max].into_iter()) else {
                panic!("linear")
            };
            assert!(to >= max && (to - end).abs() < 1e-6, "{max}: {to}");
            assert!((2..=7).contains(&ticks.len()), "{max}: {ticks:?}");
        }
    }

    #[test]
    fn a_log_axis_holds_all_values() {
        let axis = Axis::log([3.0, 250.0].into_iter());
        assert_eq!(
            axis.ticks().iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>(),
            ["1", "10", "100", "1 k"]
        );
        assert!((axis.place(10.0) - 1.0 / 3.0).abs() < 1e-9);
    }
}
