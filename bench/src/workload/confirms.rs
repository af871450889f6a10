//! How long a confirm of a persistent message takes, one message at a time, beside what a plain synchronous
//! write of a block takes on the same disk, and a round trip over loopback: no confirm can be quicker than these two
//! together. All in turns, so that whatever else the machine does meets all.
//! Then many publishers at once, each with one message at a time: what the broker makes of them together, beside
//! what loopback alone makes of as many requests.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::loopback::Echo;
use super::raw_write::{BLOCK_BYTES, RawWriter};
use super::together::{Answerer, Publishers, per_second, shares};
use crate::client::{Objects, QueueKind};
use crate::engine::histograms::{Histograms, latencies, record_duration};
use crate::engine::progress::ProgressLine;
use crate::error::BenchError;
use crate::limits::BODY_BYTES_MAX;
use crate::options::{BrokerArgs, Context, seconds};
use crate::report::figures::quantiles;
use crate::report::{Better, Figure, Report, Unit};
use crate::wire::deck::size;

/// Confirms, writes, and round trips in one turn.
const TURN: usize = 200;
/// The names of the times.
const CONFIRM: &str = "confirm";
const WRITE: &str = "raw-write";
const TRIP: &str = "round-trip";

/// What to measure.
#[derive(Args, Clone, Debug, Serialize)]
pub struct ConfirmsArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// A directory on the disk that the broker uses; a file of 16 MiB is written there, and removed.
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// Bytes of each body.
    #[arg(long, default_value = "1000", value_parser = size, value_name = "BYTES")]
    pub body: u64,
    /// Turns of 200 confirms, writes and round trips; one more comes before and does not count.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
    /// Publishers of the second part; 0: without it.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub publishers: u32,
    /// Connections of the second part, on which publishers are channels; one for each publisher if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: Option<u32>,
    /// How long the second part takes with the broker, and how long without it.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
}

impl ConfirmsArgs {
    /// Measures.
    ///
    /// # Errors
    /// When the broker refuses or fails, or the directory cannot be written.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        if self.body > BODY_BYTES_MAX as u64 {
            return Err(BenchError::Options(format!("--body is at most {BODY_BYTES_MAX} bytes")));
        }
        let mut writer = RawWriter::new(&self.directory, BLOCK_BYTES)?;
        let mut objects = Objects::new(&self.broker.uri)?;
        let mut report = Report::new("confirms", self).of(&self.broker.uri, objects.broker());
        let queue = objects.queues(1, &QueueKind { durable: true, ..QueueKind::default() })?.remove(0);
        let mut publisher = Publishers::new(&self.broker.uri, &queue, self.body as usize, 1)?;
        let times = self.in_turns(&mut publisher, &mut writer, context)?;
        for (name, times) in &times.0 {
            report.figures.extend(quantiles(name, times));
        }
        let median = |name| times.0[name].value_at_quantile(0.5) as f64;
        if times.0.values().all(|times| !times.is_empty()) {
            let ratio = |least: f64| median(CONFIRM) / least.max(1.0);
            let lower = |name, value| Figure::good(name, value, Unit::Ratio, Better::Lower);
            report.push(lower("confirm_to_raw_write_ratio", ratio(median(WRITE))));
            report.push(lower("confirm_to_least_ratio", ratio(median(WRITE) + median(TRIP))));
            let alone = 1e9 / times.0[CONFIRM].mean();
            report.push(Figure::good("alone_per_s", alone, Unit::PerSecond, Better::Higher));
            if self.publishers > 0 && !context.stop.is_set() {
                let (together, answers) = self.together(&queue, context)?;
                let higher = |name, value, unit| Figure::good(name, value, unit, Better::Higher);
                report.push(higher("together_per_s", together, Unit::PerSecond));
                report.push(higher("together_ratio", together / alone, Unit::Ratio));
                report.push(Figure::new("loopback_per_s", answers, Unit::PerSecond));
                report.push(higher("together_to_loopback_ratio", together / answers.max(1.0), Unit::Ratio));
            }
        }
        publisher.close();
        report.interrupted = context.stop.is_set();
        report.histograms = times;
        objects.remove()?;
        Ok(report)
    }

    fn in_turns(
        &self,
        publisher: &mut Publishers,
        writer: &mut RawWriter,
        context: &Context,
    ) -> Result<Histograms, BenchError> {
        let mut all = Histograms([CONFIRM, WRITE, TRIP].map(|name| (name, latencies())).into());
        let mut echo = Echo::start()?;
        let mut line = ProgressLine::new("confirms", context.quiet);
        for turn in 0..=self.turns {
            line.show(&format!("turn {turn} of {}", self.turns));
            let mut several = |name, once: &mut dyn FnMut() -> Result<Duration, BenchError>| {
                for _ in 0..TURN {
                    let time = once()?;
                    // The first turn warms up everything.
                    if turn > 0 {
                        all.0.entry(name).and_modify(|times| record_duration(times, time));
                    }
                }
                Ok::<_, BenchError>(())
            };
            if context.stop.is_set() {
                break;
            }
            several(CONFIRM, &mut || publisher.publish())?;
            several(WRITE, &mut || writer.write())?;
            several(TRIP, &mut || echo.round_trip())?;
        }
        Ok(all)
    }

    /// Confirms a second of all publishers, and answers a second of as many requests of the same size without a
    /// broker.
    fn together(&self, queue: &str, context: &Context) -> Result<(f64, f64), BenchError> {
        let connections = self.connections.unwrap_or(self.publishers).min(self.publishers);
        let mut groups = Vec::new();
        for share in shares(self.publishers, connections) {
            groups.push(Publishers::new(&self.broker.uri, queue, self.body as usize, share)?);
        }
        let message_bytes = groups[0].message_bytes();
        let answerer = Answerer::start(shares(self.publishers, connections), message_bytes)?;
        let confirmed = per_second(&mut groups, self.seconds, &context.stop)?;
        groups.into_iter().for_each(Publishers::close);
        let answered = answerer.per_second(self.seconds, &context.stop)?;
        Ok((confirmed, answered))
    }
}
