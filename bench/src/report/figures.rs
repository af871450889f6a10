//! Numbers with names and units, and those that every run has.

use std::borrow::Cow;

use hdrhistogram::Histogram;

use super::Report;
use crate::engine::run::Outcome;

/// What a number counts. Names end in it, so that a bare number in JSON or CSV is plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Things a second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Microseconds.
    Micros,
    /// Bytes.
    Bytes,
    /// Nothing: a quotient.
    Ratio,
}

/// Which way a number should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Up.
    Higher,
    /// Down.
    Lower,
    /// Neither: it describes the run.
    Neither,
}

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// In lower case, with the unit at its end unless it is a count.
    pub name: Cow<'static, str>,
    /// In the unit.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// Which way is good.
    pub better: Better,
}

impl Figure {
    /// A number that describes the run.
    pub fn new(name: impl Into<Cow<'static, str>>, value: f64, unit: Unit) -> Figure {
        Figure { name: name.into(), value, unit, better: Better::Neither }
    }

    /// A number that says how good the broker is.
    pub fn good(name: impl Into<Cow<'static, str>>, value: f64, unit: Unit, better: Better) -> Figure {
        Figure { name: name.into(), value, unit, better }
    }

    /// A count.
    pub fn count(name: &'static str, value: u64) -> Figure {
        Figure::new(name, value as f64, Unit::Count)
    }

    /// The value for people.
    pub fn shown(&self) -> String {
        shown(self.value, self.unit)
    }
}

/// A value with its unit, for people.
pub fn shown(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Count => format!("{value:.0}"),
        Unit::PerSecond => format!("{}/s", significant(value)),
        Unit::Seconds => format!("{} s", significant(value)),
        Unit::Micros => format!("{} us", significant(value)),
        Unit::Bytes if value >= f64::from(1 << 20) => {
            format!("{} MiB", significant(value / f64::from(1 << 20)))
        }
        Unit::Bytes => format!("{} KiB", significant(value / 1024.0)),
        Unit::Ratio => significant(value),
    }
}

/// Three digits, or all that stand before the point.
pub fn significant(value: f64) -> String {
    let magnitude = value.abs();
    let digits = match magnitude {
        _ if magnitude == 0.0 || magnitude >= 100.0 => 0,
        _ if magnitude >= 10.0 => 1,
        _ if magnitude >= 1.0 => 2,
        _ => (2.0 - magnitude.log10().floor()).min(9.0) as usize,
    };
    format!("{value:.digits$}")
}

/// Quantiles that are reported: the end of their name, and their share.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p99_9_us", 0.999), ("p99_99_us", 0.9999)];

/// Quantiles and maximum of a histogram in nanoseconds, as microseconds.
pub fn quantiles(name: &str, histogram: &Histogram<u64>) -> Vec<Figure> {
    let good = |end: &str, nanos: u64| {
        Figure::good(
            format!("{}_{end}", name.replace('-', "_")),
            nanos as f64 / 1e3,
            Unit::Micros,
            Better::Lower,
        )
    };
    let mut figures =
        vec![Figure::new(format!("{}_count", name.replace('-', "_")), histogram.len() as f64, Unit::Count)];
    if histogram.is_empty() {
        return figures;
    }
    figures.extend(QUANTILES.map(|(end, share)| good(end, histogram.value_at_quantile(share))));
    figures.push(good("max_us", histogram.max()));
    figures
}

/// The numbers of a run. `consumed`: messages are charged by delivery, and otherwise by publish.
pub fn of_outcome(outcome: &Outcome, consumed: bool) -> Vec<Figure> {
    let totals = &outcome.totals;
    let mut figures = vec![
        Figure::count("sent", totals.sent),
        Figure::count("confirmed", totals.confirmed),
        Figure::count("nacked", totals.nacked),
        Figure::count("returned", totals.returned),
        Figure::count("delivered", totals.delivered),
        Figure::count("redelivered", totals.redelivered),
        Figure::count("acked", totals.acked),
        Figure::count("missing", outcome.missing),
        Figure::count("blocked", totals.blocked),
        Figure::new("window_s", outcome.window_s, Unit::Seconds),
        Figure::new("total_s", outcome.total_s, Unit::Seconds),
    ];
    let window = outcome.window_s.max(f64::MIN_POSITIVE);
    let rate = |count: u64| count as f64 / window;
    let higher = |name, value, unit| Figure::good(name, value, unit, Better::Higher);
    figures.push(higher("sent_per_s", rate(outcome.window.sent), Unit::PerSecond));
    if totals.confirmed > 0 {
        figures.push(higher("confirmed_per_s", rate(outcome.window.confirmed), Unit::PerSecond));
    }
    if consumed {
        figures.push(higher("delivered_per_s", rate(outcome.window.delivered), Unit::PerSecond));
        figures.push(higher("body_bytes_per_s", rate(outcome.window.body_bytes), Unit::Bytes));
    }
    figures.extend(cost(outcome, if consumed { totals.delivered } else { totals.sent }));
    figures
}

/// CPU time for so many messages, and memory.
pub fn cost(outcome: &Outcome, messages: u64) -> Vec<Figure> {
    let per_million = |seconds: f64| seconds * 1e6 / messages.max(1) as f64;
    let lower = |name, value, unit| Figure::good(name, value, unit, Better::Lower);
    let mut figures = Vec::new();
    if let Some(seconds) = outcome.broker_cpu_s {
        figures.push(Figure::new("broker_cpu_s", seconds, Unit::Seconds));
        figures.push(lower("broker_cpu_s_per_million", per_million(seconds), Unit::Seconds));
    }
    if let Some(memory) = outcome.broker_memory {
        figures.push(lower("broker_peak_bytes", memory.peak as f64, Unit::Bytes));
    }
    figures.push(Figure::new("generator_cpu_s_per_million", per_million(outcome.own_cpu_s), Unit::Seconds));
    figures
}

impl Report {
    /// Takes all of a run: numbers, quantiles, rates, and what is to be said about them.
    pub fn take(&mut self, outcome: Outcome, consumed: bool) {
        self.figures.extend(of_outcome(&outcome, consumed));
        for (name, histogram) in &outcome.histograms.0 {
            self.figures.extend(quantiles(name, histogram));
        }
        if outcome.missing > 0 && !outcome.interrupted {
            self.notes.push(format!("{} deliveries were due and did not come", outcome.missing));
        }
        if outcome.totals.blocked > 0 {
            self.notes.push(format!("the broker blocked publishers {} times", outcome.totals.blocked));
        }
        self.interrupted |= outcome.interrupted;
        self.histograms.merge(outcome.histograms);
        self.samples = outcome.samples;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::histograms::{latencies, record};

    #[test]
    fn numbers_for_people_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.042, "0.0420"),
            (0.25, "0.250"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (1234.5, "1234"),
        ] {
            assert_eq!(significant(value), text);
        }
        assert_eq!(shown(3.0 * 1024.0 * 1024.0, Unit::Bytes), "3.00 MiB");
        assert_eq!(shown(3.0, Unit::Count), "3");
    }

    #[test]
    fn quantiles_are_in_microseconds() {
        let mut histogram = latencies();
        (1..=1000).for_each(|us| record(&mut histogram, us * 1000));
        let figures = quantiles("a-b", &histogram);
        let value = |name: &str| figures.iter().find(|figure| figure.name == name).unwrap().value;
        assert_eq!(value("a_b_count"), 1000.0);
        assert!((value("a_b_p50_us") - 500.0).abs() < 1.0 && (value("a_b_p99_us") - 990.0).abs() < 1.0);
        assert!((value("a_b_max_us") - 1000.0).abs() < 1.0);
        assert_eq!(quantiles("none", &latencies()).len(), 1);
    }
}
