//! Figures for people: columns on a terminal.

use std::fmt::Write as _;

use super::{Report, Unit};

/// Columns that are as wide as their widest entry; the first is flush left, all others right.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, entry) in row.iter().enumerate() {
            let width = widths[column];
            if column == 0 {
                let _ = write!(line, "{entry:<width$}");
            } else {
                let _ = write!(line, "  {entry:>width$}");
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A figure's name for people: `p99_9` is a percentile with a fraction.
pub fn label(name: &str) -> String {
    name.replace("p99_9", "p99.9").replace('_', " ")
}

/// A report for people. Counts of what did not happen are left out.
pub fn write(report: &Report) -> String {
    let mut text = report.workload.to_owned();
    if let Some(place) = &report.broker {
        let _ = write!(text, " on {} {} at {}", place.broker.product, place.broker.version, place.uri);
    }
    text.push_str(if report.interrupted { " (interrupted)\n" } else { "\n" });
    let shown = report.figures.iter().filter(|figure| figure.unit != Unit::Count || figure.value != 0.0);
    let rows: Vec<Vec<String>> =
        shown.map(|figure| vec![format!("  {}", label(&figure.name)), figure.shown()]).collect();
    text.push_str(&columns(&rows));
    text.push_str(&steps(report));
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn steps(report: &Report) -> String {
    let Some(first) = report.steps.first() else { return String::new() };
    let names = first.figures.iter().map(|figure| label(&figure.name));
    let mut rows = vec![std::iter::once("  step".to_owned()).chain(names).collect::<Vec<_>>()];
    for step in &report.steps {
        let values = step.figures.iter().map(super::Figure::shown);
        rows.push(std::iter::once(format!("  {}", step.name)).chain(values).collect());
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Figure, Step};

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "1".into()], vec!["long".into(), "22".into()]];
        assert_eq!(columns(&rows), "a      1\nlong  22\n");
    }

    #[test]
    fn a_report_shows_its_figures_steps_and_notes() {
        let figures = vec![Figure::count("sent", 7), Figure::count("nacked", 0)];
        let report = Report {
            workload: "latency",
            figures,
            steps: vec![Step { name: "1000/s".into(), figures: vec![Figure::count("sent", 9)] }],
            notes: vec!["look".into()],
            interrupted: true,
            ..Report::default()
        };
        assert_eq!(
            write(&report),
            "latency (interrupted)\n  sent  7\n  step    sent\n  1000/s     9\nnote: look\n"
        );
    }
}
