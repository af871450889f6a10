//! Values of all rounds, by workload, figure and broker; medians, spread, and ratios to the first broker.

use super::Target;
use crate::report::{Better, Figure, Unit};

/// All values of a comparison.
#[derive(Clone, Debug)]
pub struct Table {
    /// Who takes part, in the order of the command line.
    pub targets: Vec<Target>,
    /// How often each workload was to run.
    pub rounds: u32,
    /// One for each figure of each workload, in the order in which they came.
    pub rows: Vec<Row>,
    /// What is to be said about single runs.
    pub notes: Vec<String>,
}

/// One figure of one workload.
#[derive(Clone, Debug)]
pub struct Row {
    /// The workload's name in its set.
    pub workload: String,
    /// The figure's name.
    pub figure: String,
    /// Its unit.
    pub unit: Unit,
    /// Which way is good.
    pub better: Better,
    /// Round and value, by broker.
    values: Vec<Vec<(u32, f64)>>,
}

/// What a broker's values of a figure come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Half of the values are not above, half not below.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// From the least to the most, in parts of the median.
    pub spread: f64,
    /// How many there are.
    pub runs: usize,
}

/// A broker's figure in parts of the first one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Of the medians.
    pub of_medians: f64,
    /// The least within one round.
    pub min: f64,
    /// The most within one round.
    pub max: f64,
}

impl Table {
    /// Without values.
    pub fn new(targets: &[Target], rounds: u32) -> Table {
        Table { targets: targets.to_vec(), rounds, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds one run.
    pub fn add(&mut self, workload: &str, target: usize, round: u32, figures: &[Figure], notes: &[String]) {
        for figure in figures {
            let place =
                self.rows.iter().position(|row| row.workload == workload && row.figure == figure.name);
            let place = place.unwrap_or_else(|| {
                self.rows.push(Row {
                    workload: workload.to_owned(),
                    figure: figure.name.to_string(),
                    unit: figure.unit,
                    better: figure.better,
                    values: vec![Vec::new(); self.targets.len()],
                });
                self.rows.len() - 1
            });
            self.rows[place].values[target].push((round, figure.value));
        }
        notes.iter().for_each(|note| self.note(workload, target, note));
    }

    /// Notes a run that failed.
    pub fn fail(&mut self, workload: &str, target: usize, error: &str) {
        self.note(workload, target, &format!("failed: {error}"));
    }

    fn note(&mut self, workload: &str, target: usize, text: &str) {
        let note = format!("{workload} on {}: {text}", self.targets[target].name);
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

impl Row {
    /// A broker's values, if there are any.
    pub fn summary(&self, target: usize) -> Option<Summary> {
        let mut values: Vec<f64> = self.values[target].iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = median(&values);
        let spread = if median == 0.0 { 0.0 } else { (max - min) / median };
        Some(Summary { median, min, max, spread, runs: values.len() })
    }

    /// A broker's values in parts of the first one's, if both have any.
    pub fn ratio(&self, target: usize) -> Option<Ratio> {
        let (first, own) = (self.summary(0)?, self.summary(target)?);
        let of_rounds = self.values[target].iter().filter_map(|(round, value)| {
            let (_, first) = self.values[0].iter().find(|(of, _)| of == round)?;
            (*first != 0.0).then(|| value / first)
        });
        let (min, max) = of_rounds
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), ratio| (min.min(ratio), max.max(ratio)));
        (first.median != 0.0 && min <= max).then(|| Ratio { of_medians: own.median / first.median, min, max })
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len().is_multiple_of(2) {
        true => f64::midpoint(sorted[middle - 1], sorted[middle]),
        false => sorted[middle],
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::client::Broker;

    /// Rates of two brokers in three rounds, and a latency that only one of them has.
    pub fn a_table() -> Table {
        let target = |name: &str| Target {
            name: name.into(),
            uri: "amqp://h".parse().unwrap(),
            pid: None,
            broker: Broker { product: name.to_uppercase(), version: "1".into() },
        };
        let mut table = Table::new(&[target("a"), target("b")], 3);
        let rate = |value| Figure::good("delivered_per_s", value, Unit::PerSecond, Better::Higher);
        for (round, (a, b)) in [(100.0, 300.0), (200.0, 400.0), (110.0, 440.0)].into_iter().enumerate() {
            table.add("16-B", 0, round as u32, &[rate(a)], &[]);
            table.add("16-B", 1, round as u32, &[rate(b)], &["slow".into()]);
        }
        table.add("lat", 1, 0, &[Figure::good("deliver_p99_us", 5.0, Unit::Micros, Better::Lower)], &[]);
        table.fail("lat", 0, "refused");
        table
    }

    #[test]
    fn medians_spread_and_ratios_are_those_of_the_runs() {
        let table = a_table();
        let row = &table.rows[0];
        let a = row.summary(0).unwrap();
        assert_eq!((a.median, a.min, a.max, a.runs), (110.0, 100.0, 200.0, 3));
        assert!((a.spread - 100.0 / 110.0).abs() < 1e-9);
        let ratio = row.ratio(1).unwrap();
        assert!((ratio.of_medians - 400.0 / 110.0).abs() < 1e-9);
        assert_eq!((ratio.min, ratio.max), (2.0, 4.0));
        assert_eq!(row.ratio(0).unwrap().of_medians, 1.0);
    }

    #[test]
    fn what_one_broker_does_not_have_has_no_ratio() {
        let row = &a_table().rows[1];
        assert!(row.summary(0).is_none() && row.ratio(1).is_none() && row.summary(1).is_some());
    }

    #[test]
    fn a_note_is_kept_once() {
        assert_eq!(a_table().notes, ["16-B on b: slow", "lat on a: failed: refused"]);
    }

    #[test]
    fn an_even_number_of_values_has_its_median_in_between() {
        assert_eq!((median(&[1.0, 2.0]), median(&[1.0, 2.0, 9.0])), (1.5, 2.0));
    }
}
