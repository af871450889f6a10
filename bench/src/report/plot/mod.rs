//! Plots as SVG, written here: a few lines and texts need no library.

pub mod bars;
pub mod lines;
pub mod svg;

use std::path::Path;

use super::Report;
use lines::{Axis, Line, Panel};
use svg::Svg;

const WIDTH: f64 = 860.0;
const PANEL_HEIGHT: f64 = 360.0;
/// As far to the right as percentile curves go: 99.9999 %.
const NINES_MAX: f64 = 6.0;

/// The plot of a report: percentile curves if it has latencies, and rates over time if it has those.
pub fn of_report(report: &Report) -> String {
    let mut title = report.workload.to_owned();
    if let Some(place) = &report.broker {
        title = format!("{title}: {} {}", place.broker.product, place.broker.version);
    }
    let panels: Vec<Panel> = [percentiles(report), rates(report)].into_iter().flatten().collect();
    let mut svg = Svg::new(WIDTH, 40.0 + PANEL_HEIGHT * panels.len() as f64, &title);
    for (number, panel) in panels.iter().enumerate() {
        panel.draw(&mut svg, 0.0, 40.0 + PANEL_HEIGHT * number as f64, WIDTH, PANEL_HEIGHT);
    }
    svg.finish()
}

/// Writes it.
///
/// # Errors
/// When the file cannot be written.
pub fn write(report: &Report, path: &Path) -> Result<(), crate::BenchError> {
    std::fs::write(path, of_report(report)).map_err(crate::BenchError::file(path))
}

fn percentiles(report: &Report) -> Option<Panel> {
    let lines: Vec<Line> = report
        .histograms
        .0
        .iter()
        .filter(|(_, histogram)| !histogram.is_empty())
        .map(|(name, histogram)| {
            // As far as the counts tell anything: beyond, one latency stands for all.
            let nines_max = (histogram.len() as f64).log10().clamp(0.1, NINES_MAX);
            let points = (0..=200).map(|step| {
                let nines = nines_max * f64::from(step) / 200.0;
                let nanos = histogram.value_at_quantile(1.0 - 10f64.powf(-nines));
                (nines, (nanos as f64 / 1e3).max(0.1))
            });
            Line { name: (*name).to_owned(), points: points.collect() }
        })
        .collect();
    let right = lines.iter().filter_map(|line| line.points.last()).map(|point| point.0).fold(1.0, f64::max);
    let ticks = [
        (0.0, "0"),
        (0.301, "50"),
        (1.0, "90"),
        (2.0, "99"),
        (3.0, "99.9"),
        (4.0, "99.99"),
        (5.0, "99.999"),
        (6.0, "99.9999"),
    ];
    let ticks =
        ticks.into_iter().filter(|(at, _)| *at <= right + 1e-9).map(|(at, text)| (at, text.to_owned()));
    (!lines.is_empty()).then(|| Panel {
        title: "latency (us) by percentile".to_owned(),
        x: Axis::Fixed { from: 0.0, to: right, ticks: ticks.collect() },
        y: Axis::log(lines.iter().flat_map(|line| line.points.iter().map(|point| point.1))),
        lines,
    })
}

fn rates(report: &Report) -> Option<Panel> {
    let samples = &report.samples;
    let line = |name: &str, value: fn(&crate::engine::progress::Sample) -> f64| Line {
        name: name.to_owned(),
        points: samples.iter().map(|sample| (sample.seconds, value(sample))).collect(),
    };
    let lines = vec![
        line("sent", |sample| sample.sent),
        line("delivered", |sample| sample.delivered),
        line("confirmed", |sample| sample.confirmed),
    ];
    let lines: Vec<Line> =
        lines.into_iter().filter(|line| line.points.iter().any(|point| point.1 > 0.0)).collect();
    (!lines.is_empty()).then(|| Panel {
        title: "messages a second over time (s)".to_owned(),
        x: Axis::linear(samples.iter().map(|sample| sample.seconds)),
        y: Axis::linear(lines.iter().flat_map(|line| line.points.iter().map(|point| point.1))),
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::histograms::{Histograms, latencies, record};
    use crate::engine::progress::Sample;

    #[test]
    fn a_report_with_latencies_and_rates_has_both_panels() {
        let mut histogram = latencies();
        (1..=10_000).for_each(|us| record(&mut histogram, us * 1000));
        let samples = (1..=10)
            .map(|n| Sample {
                seconds: f64::from(n),
                sent: 10.0 * f64::from(n),
                delivered: 5.0,
                confirmed: 0.0,
            })
            .collect();
        let histograms = Histograms::one("deliver", histogram);
        let svg = of_report(&Report { workload: "latency", histograms, samples, ..Report::default() });
        for text in [
            "latency (us) by percentile",
            "messages a second",
            ">deliver<",
            ">sent<",
            ">delivered<",
            ">99.99<",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains(">confirmed<") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("<polyline").count(), 3);
    }

    #[test]
    fn a_report_with_nothing_to_plot_is_an_empty_plot() {
        let svg = of_report(&Report { workload: "idle", ..Report::default() });
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
