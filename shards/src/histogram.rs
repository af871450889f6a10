//! How long things take: counts by length, exact to an eighth.
//!
//! Lengths below [`STEPS`] have a bucket each; above, each power of two is cut into as many steps, so that a length
//! and its bucket's upper end differ by no more than 12.5 %. Entering one is a few instructions and one count in the
//! memory of the shard whose thread calls; nobody else looks.

#![forbid(unsafe_code)]

/// Buckets of each power of two.
const STEPS: usize = 1 << STEP_BITS;
const STEP_BITS: u32 = 3;
/// Lengths from here on, 36 minutes in microseconds, are all the same.
const LENGTH_BITS: u32 = 31;
const BUCKETS: usize = ((LENGTH_BITS - STEP_BITS + 1) as usize) * STEPS;

/// Lengths of time in microseconds. See the module.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
    longest_us: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: Box::new([0; BUCKETS]), count: 0, longest_us: 0 }
    }
}

impl Histogram {
    /// Enters one.
    #[inline]
    pub fn record(&mut self, us: u64) {
        self.buckets[bucket(us)] += 1;
        self.count += 1;
        self.longest_us = self.longest_us.max(us);
    }

    /// How many were entered.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest one, exactly; 0 if there is none.
    pub fn longest_us(&self) -> u64 {
        self.longest_us
    }

    /// A length that this share of all do not exceed, from 0 to 1; 0 if there is none.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_end(index).min(self.longest_us);
            }
        }
        self.longest_us
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.longest_us) = (0, 0);
    }
}

fn bucket(us: u64) -> usize {
    let us = us.min((1 << LENGTH_BITS) - 1);
    if us < STEPS as u64 {
        return us as usize;
    }
    let above = us.ilog2() - STEP_BITS;
    (above as usize + 1) * STEPS + (us >> above) as usize - STEPS
}

/// The longest that is in this bucket.
fn upper_end(index: usize) -> u64 {
    if index < STEPS {
        return index as u64;
    }
    let above = index / STEPS - 1;
    let first = ((STEPS + index % STEPS) as u64) << above;
    first + (1 << above) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_are_right_to_an_eighth_and_the_longest_exactly() {
        let mut histogram = Histogram::default();
        (1..=1_000).for_each(|us| histogram.record(us));
        histogram.record(123_457);
        assert_eq!((histogram.count(), histogram.longest_us()), (1_001, 123_457));
        for (share, exact) in [(0.5, 501), (0.9, 901), (0.99, 991)] {
            let found = histogram.quantile_us(share);
            assert!((exact..=exact * 9 / 8).contains(&found), "{share}: {found}");
        }
        assert_eq!(histogram.quantile_us(1.0), 123_457);
        assert_eq!(histogram.quantile_us(0.0), 1);
    }

    #[test]
    fn an_empty_histogram_has_nothing_and_neither_has_one_that_was_cleared() {
        let mut histogram = Histogram::default();
        for _ in 0..2 {
            assert_eq!((histogram.count(), histogram.longest_us(), histogram.quantile_us(0.99)), (0, 0, 0));
            histogram.record(77);
            assert_eq!(histogram.quantile_us(0.5), 77);
            histogram.clear();
        }
    }

    #[test]
    fn what_takes_for_ever_is_counted_too() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!((histogram.count(), histogram.longest_us()), (1, u64::MAX));
    }

    proptest! {
        #[test]
        fn each_length_is_in_the_bucket_that_ends_closest_above(us in 0..(1_u64 << LENGTH_BITS)) {
            let end = upper_end(bucket(us));
            prop_assert!(us <= end && end - us <= us / STEPS as u64);
            prop_assert_eq!(bucket(end), bucket(us));
            if end + 1 < 1 << LENGTH_BITS {
                prop_assert_eq!(bucket(end + 1), bucket(us) + 1);
            }
        }
    }
}
