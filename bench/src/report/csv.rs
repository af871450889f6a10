//! A report as CSV: one line for each number, so that lines of many runs can be put behind each other.

use super::{Figure, Report};

/// The first line of every file.
pub const HEAD: &str = "workload,product,version,uri,step,figure,value\n";

/// All lines of a report, without the first.
pub fn lines(report: &Report) -> String {
    let (product, version, uri) = match &report.broker {
        Some(place) => (place.broker.product.as_str(), place.broker.version.as_str(), place.uri.as_str()),
        None => ("", "", ""),
    };
    let start = [report.workload, product, version, uri].map(field).join(",");
    let line = |step: &str, figure: &Figure| {
        format!("{start},{},{},{}\n", field(step), field(&figure.name), figure.value)
    };
    let own = report.figures.iter().map(|figure| line("", figure));
    let steps =
        report.steps.iter().flat_map(|step| step.figures.iter().map(|figure| line(&step.name, figure)));
    own.chain(steps).collect()
}

/// A field, in quotes if it needs them (RFC 4180).
pub fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Unit;

    #[test]
    fn each_figure_is_a_line_and_odd_names_are_quoted() {
        let mut report = Report { workload: "limit", ..Report::default() };
        report.push(Figure::count("sent", 5));
        report.push(Figure::new("a,\"b", 0.5, Unit::Ratio));
        assert_eq!(lines(&report), "limit,,,,,sent,5\nlimit,,,,,\"a,\"\"b\",0.5\n");
    }
}
