//! Rates over time: sampled while a run goes on, shown on a terminal, and kept for a plot.

use std::io::{self, IsTerminal as _, Write as _};

use super::counters::Totals;
use crate::clock::Nanos;
use crate::limits::SAMPLES_MAX;

/// Rates between two looks at the counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// At the end, since the start of the run.
    pub seconds: f64,
    /// Messages sent a second.
    pub sent: f64,
    /// Messages delivered a second.
    pub delivered: f64,
    /// Messages confirmed a second.
    pub confirmed: f64,
}

/// Looks at the counters, and the rates between the looks.
#[derive(Debug)]
pub struct Sampler {
    last: (Nanos, Totals),
    samples: Vec<Sample>,
    /// So many looks make a sample: doubled when the samples are too many.
    stride: u32,
    looks: u32,
}

impl Sampler {
    /// Starts now.
    pub fn new(now: Nanos) -> Sampler {
        Sampler { last: (now, Totals::default()), samples: Vec::new(), stride: 1, looks: 0 }
    }

    /// Looks. Gives the newest sample.
    pub fn look(&mut self, now: Nanos, totals: Totals) -> Option<Sample> {
        self.looks += 1;
        if !self.looks.is_multiple_of(self.stride) || now <= self.last.0 {
            return self.samples.last().copied();
        }
        let (before, last) = self.last;
        let seconds = now.since(before) as f64 / 1e9;
        let rate = |now: u64, last: u64| (now - last) as f64 / seconds;
        let sample = Sample {
            seconds: now.0 as f64 / 1e9,
            sent: rate(totals.sent, last.sent),
            delivered: rate(totals.delivered, last.delivered),
            confirmed: rate(totals.confirmed, last.confirmed),
        };
        self.last = (now, totals);
        self.samples.push(sample);
        if self.samples.len() > SAMPLES_MAX {
            self.thin();
        }
        Some(sample)
    }

    /// Two samples become one, of their mean.
    fn thin(&mut self) {
        self.stride *= 2;
        let mean = |a: f64, b: f64| f64::midpoint(a, b);
        let pairs = self.samples.chunks(2).map(|pair| match pair {
            [a, b] => Sample {
                seconds: b.seconds,
                sent: mean(a.sent, b.sent),
                delivered: mean(a.delivered, b.delivered),
                confirmed: mean(a.confirmed, b.confirmed),
            },
            _ => pair[0],
        });
        self.samples = pairs.collect();
    }

    /// All samples.
    pub fn into_samples(self) -> Vec<Sample> {
        self.samples
    }
}

/// One line on standard error that is written over and over, if that is a terminal and nobody has asked for silence.
#[derive(Debug)]
pub struct ProgressLine {
    shown: bool,
    label: String,
    written: bool,
}

impl ProgressLine {
    /// Not written yet.
    pub fn new(label: &str, quiet: bool) -> ProgressLine {
        ProgressLine { shown: !quiet && io::stderr().is_terminal(), label: label.to_owned(), written: false }
    }

    /// Writes it anew.
    pub fn show(&mut self, text: &str) {
        if self.shown {
            self.written = true;
            let _ = write!(io::stderr().lock(), "\r\x1b[K{}: {text}", self.label);
        }
    }

    /// Shows rates.
    pub fn show_sample(&mut self, sample: &Sample) {
        let Sample { seconds, sent, delivered, confirmed } = sample;
        self.show(&format!(
            "{seconds:.1} s, sent {sent:.0}/s, delivered {delivered:.0}/s, confirmed {confirmed:.0}/s"
        ));
    }

    /// Takes it away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.written) {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, sent: u64) -> (Nanos, Totals) {
        (Nanos(seconds * 1_000_000_000), Totals { sent, ..Totals::default() })
    }

    #[test]
    fn a_sample_is_the_rate_since_the_last_one() {
        let mut sampler = Sampler::new(Nanos(0));
        for (now, totals) in [at(2, 100), at(3, 400)] {
            sampler.look(now, totals);
        }
        let rates: Vec<(f64, f64)> = sampler.into_samples().iter().map(|s| (s.seconds, s.sent)).collect();
        assert_eq!(rates, [(2.0, 50.0), (3.0, 300.0)]);
    }

    #[test]
    fn samples_of_a_long_run_are_bounded_and_keep_the_rate() {
        let mut sampler = Sampler::new(Nanos(0));
        for second in 1..=20_000 {
            let (now, totals) = at(second, second * 7);
            sampler.look(now, totals);
        }
        let samples = sampler.into_samples();
        assert!(samples.len() <= SAMPLES_MAX && samples.len() > SAMPLES_MAX / 4);
        assert!(samples.iter().all(|sample| sample.sent == 7.0));
        assert!(samples.last().unwrap().seconds > 19_000.0);
    }
}
