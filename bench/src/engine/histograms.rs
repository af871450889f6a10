//! Latencies by name, in nanoseconds.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::limits::{LATENCY_DIGITS, LATENCY_MAX};

/// An empty histogram that holds any latency which a run can meet.
pub fn latencies() -> Histogram<u64> {
    let max = u64::try_from(LATENCY_MAX.as_nanos()).expect("an hour fits");
    Histogram::new_with_max(max, LATENCY_DIGITS).expect("bounds that are valid")
}

/// Counts one latency; what is longer than the longest counts as that.
#[inline]
pub fn record(histogram: &mut Histogram<u64>, nanos: u64) {
    histogram.saturating_record(nanos);
}

/// Counts one latency.
pub fn record_duration(histogram: &mut Histogram<u64>, time: Duration) {
    record(histogram, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

/// Histograms by name.
#[derive(Clone, Debug, Default)]
pub struct Histograms(pub BTreeMap<&'static str, Histogram<u64>>);

impl Histograms {
    /// One of them.
    pub fn one(name: &'static str, histogram: Histogram<u64>) -> Histograms {
        Histograms(BTreeMap::from([(name, histogram)]))
    }

    /// Adds those of the same names.
    pub fn merge(&mut self, other: Histograms) {
        for (name, histogram) in other.0 {
            match self.0.get_mut(name) {
                Some(own) => own.add(&histogram).expect("all have the same bounds"),
                None => {
                    self.0.insert(name, histogram);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_of_the_same_name_are_added() {
        let of = |nanos| {
            let mut histogram = latencies();
            record(&mut histogram, nanos);
            histogram
        };
        let mut all = Histograms::one("a", of(10));
        all.merge(Histograms::one("a", of(1000)));
        all.merge(Histograms::one("b", of(5)));
        assert_eq!((all.0["a"].len(), all.0["a"].min(), all.0["b"].len()), (2, 10, 1));
    }

    #[test]
    fn a_latency_past_the_bound_counts() {
        let mut histogram = latencies();
        record(&mut histogram, u64::MAX);
        assert_eq!(histogram.len(), 1);
    }
}
