//! The highest rate at which a limit on latency holds: doubled until it does not, then halved in between.

use super::latency::Loaded;
use crate::client::Client;
use crate::engine::consumer::DELIVER;
use crate::error::BenchError;
use crate::options::Context;
use crate::report::{Better, Figure, Report, Step, Unit, figures};
use crate::uri::BrokerUri;

/// The search ends when the best rate and the next one that failed are this close.
const CLOSE_ENOUGH: f64 = 1.08;

/// What to search.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The first rate.
    pub start: f64,
    /// The last one.
    pub max: f64,
    /// The limit of the 99th percentile of publish-to-deliver.
    pub limit_us: f64,
}

/// Where the search stands.
#[derive(Clone, Copy, Debug)]
struct Search {
    plan: Sweep,
    /// The highest rate that held, if any did.
    good: Option<f64>,
    /// The lowest rate that did not.
    bad: Option<f64>,
}

impl Search {
    /// The next rate to try, unless the search is over.
    fn next(&self) -> Option<f64> {
        match (self.good, self.bad) {
            (None, None) => Some(self.plan.start),
            (Some(good), None) => (good < self.plan.max).then(|| (good * 2.0).min(self.plan.max)),
            (Some(good), Some(bad)) => (bad / good > CLOSE_ENOUGH).then(|| f64::midpoint(good, bad)),
            // Not even the first one: down, but not for ever.
            (None, Some(bad)) => (bad > self.plan.start / 1000.0).then_some(bad / 4.0),
        }
    }

    fn note(&mut self, rate: f64, holds: bool) {
        match holds {
            true => self.good = Some(rate),
            false => self.bad = Some(rate),
        }
    }
}

/// Searches; `load` runs one rate.
///
/// # Errors
/// When a run fails.
pub fn run(
    report: Report,
    plan: &Sweep,
    uri: &BrokerUri,
    context: &Context,
    load: impl Fn(f64) -> Result<Loaded, BenchError>,
) -> Result<Report, BenchError> {
    let client = Client::connect(uri)?;
    let mut report = report.of(uri, client.broker.clone());
    client.close();
    let mut search = Search { plan: *plan, good: None, bad: None };
    while let Some(rate) = search.next() {
        let loaded = load(rate)?;
        if context.stop.is_set() {
            // A rate that was cut short says nothing.
            report.interrupted = true;
            break;
        }
        let holds = holds(&loaded, plan.limit_us);
        search.note(rate, holds);
        report.steps.push(step(rate, &loaded, holds));
        if holds {
            // The curves of a sweep are those of the best rate.
            report.histograms = loaded.outcome.histograms;
            report.samples = loaded.outcome.samples;
        }
    }
    match search.good {
        Some(rate) => report.push(Figure::good("best_rate_per_s", rate, Unit::PerSecond, Better::Higher)),
        None => {
            report.notes.push(format!("p99 stayed above {} us at every rate that was tried", plan.limit_us))
        }
    }
    Ok(report)
}

fn holds(loaded: &Loaded, limit_us: f64) -> bool {
    let outcome = &loaded.outcome;
    let p99 = outcome.histograms.0.get(DELIVER).map(|times| times.value_at_quantile(0.99) as f64 / 1e3);
    loaded.unsent() == 0 && outcome.missing == 0 && p99.is_some_and(|p99| p99 <= limit_us)
}

fn step(rate: f64, loaded: &Loaded, holds: bool) -> Step {
    let mut figures = vec![
        Figure::new("rate_per_s", rate, Unit::PerSecond),
        Figure::count("unsent", loaded.unsent()),
        Figure::count("missing", loaded.outcome.missing),
        Figure::count("holds", u64::from(holds)),
    ];
    if let Some(times) = loaded.outcome.histograms.0.get(DELIVER) {
        figures.extend(figures::quantiles(DELIVER, times));
    }
    Step { name: format!("{rate:.0}/s"), figures }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result against a broker that holds up to `capacity`, and the number of steps.
    fn search(start: f64, max: f64, capacity: f64) -> (Option<f64>, usize) {
        let mut search = Search { plan: Sweep { start, max, limit_us: 1.0 }, good: None, bad: None };
        let mut steps = 0;
        while let Some(rate) = search.next() {
            assert!(rate <= max);
            search.note(rate, rate <= capacity);
            steps += 1;
        }
        (search.good, steps)
    }

    #[test]
    fn the_search_finds_the_capacity_from_below_and_from_above() {
        for start in [1_000.0, 50_000.0, 800_000.0] {
            let (found, steps) = search(start, 1e6, 70_000.0);
            let found = found.unwrap();
            assert!(found <= 70_000.0 && found * CLOSE_ENOUGH >= 70_000.0, "{start}: {found}");
            assert!(steps < 20, "{steps}");
        }
    }

    #[test]
    fn the_search_ends_at_its_bounds() {
        assert_eq!(search(1_000.0, 5_000.0, f64::MAX), (Some(5_000.0), 4));
        let (found, steps) = search(1_000.0, 5_000.0, 0.0);
        assert!(found.is_none() && steps < 10);
    }
}
