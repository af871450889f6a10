//! Publish-to-deliver and publish-to-confirm at a fixed rate, in open loop: from the time at which a message was due.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::parties::{AckMode, Consumers, properties, publisher, spread};
use super::sweep::{self, Sweep};
use crate::client::Objects;
use crate::clock::{Clock, Nanos};
use crate::engine::counters::Counters;
use crate::engine::group::Member;
use crate::engine::open_loop::{OpenLoop, Template};
use crate::engine::pace::Pace;
use crate::engine::run::{Expected, Load, Outcome, RunPlan, run};
use crate::error::BenchError;
use crate::limits::{BODY_BYTES_MAX, CONNECTIONS_MAX, QUEUES_MAX, STAMP_BYTES};
use crate::options::{BrokerArgs, Context, QueueArgs, rate, seconds};
use crate::report::{Figure, Report};
use crate::wire::deck::size;
use crate::wire::encode::Envelope;

/// Between the last connection and the first message.
const LEAD: Duration = Duration::from_millis(20);

/// What to measure.
#[derive(Args, Clone, Debug, Serialize)]
pub struct LatencyArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Messages a second of all producers together.
    #[arg(long, default_value = "10000", value_parser = rate)]
    pub rate: f64,
    /// Find the highest rate at which the 99th percentile of publish-to-deliver stays within --limit-ms; starts
    /// at --rate.
    #[arg(long)]
    pub sweep: bool,
    /// The limit of --sweep.
    #[arg(long, default_value = "5", value_name = "MS", value_parser = rate)]
    pub limit_ms: f64,
    /// The highest rate that --sweep tries.
    #[arg(long, default_value = "1000000", value_parser = rate)]
    pub rate_max: f64,
    /// Connections that publish.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    pub producers: u32,
    /// Connections that consume.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    pub consumers: u32,
    /// Queues; each message goes to one of them, in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=QUEUES_MAX as i64))]
    pub queues: u32,
    #[command(flatten)]
    pub queue: QueueArgs,
    /// Bytes of each body, at least 8: it carries a time.
    #[arg(long, default_value = "1024", value_parser = size, value_name = "BYTES")]
    pub body: u64,
    /// No publisher confirms.
    #[arg(long)]
    pub no_confirms: bool,
    /// Unacked messages of each consumer at most; 0: no limit.
    #[arg(long, default_value_t = 0)]
    pub prefetch: u16,
    /// How deliveries are acked.
    #[arg(long, value_enum, default_value_t)]
    pub ack: AckMode,
    /// How long to measure, for each rate.
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub seconds: Duration,
    /// How long to publish before, without measuring.
    #[arg(long, default_value = "1", value_parser = seconds, value_name = "SECONDS")]
    pub warm_up: Duration,
    /// How long a broker that has fallen behind may take to catch up, and to send the rest while nothing more comes.
    #[arg(long, default_value = "5", value_parser = seconds, value_name = "SECONDS")]
    pub patience: Duration,
}

/// A run, and how many messages were due in it.
pub struct Loaded {
    /// What the run gave.
    pub outcome: Outcome,
    /// All of its messages.
    pub due: u64,
}

impl Loaded {
    /// Messages that could not be sent in time.
    pub fn unsent(&self) -> u64 {
        self.due - self.outcome.totals.sent
    }
}

impl LatencyArgs {
    /// Measures.
    ///
    /// # Errors
    /// When options contradict each other, or the broker refuses or fails.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        self.check()?;
        let report = Report::new("latency", self);
        if self.sweep {
            let plan = Sweep { start: self.rate, max: self.rate_max, limit_us: self.limit_ms * 1e3 };
            return sweep::run(report, &plan, &self.broker.uri, context, |rate| self.at(rate, context));
        }
        let mut objects = Objects::new(&self.broker.uri)?;
        let mut report = report.of(&self.broker.uri, objects.broker());
        let loaded = self.load(self.rate, &mut objects, context, "latency")?;
        report.push(Figure::count("due", loaded.due));
        report.push(Figure::count("unsent", loaded.unsent()));
        if loaded.unsent() > 0 && !loaded.outcome.interrupted {
            let text =
                format!("{} messages were due and could not be sent: the rate is too high", loaded.unsent());
            report
                .notes
                .push(format!("{text}, and the times of those that waited longest are not in the figures"));
        }
        report.take(loaded.outcome, true);
        objects.remove()?;
        Ok(report)
    }

    /// One step of a sweep, with queues of its own.
    fn at(&self, rate: f64, context: &Context) -> Result<Loaded, BenchError> {
        let mut objects = Objects::new(&self.broker.uri)?;
        let loaded = self.load(rate, &mut objects, context, &format!("latency at {rate:.0}/s"))?;
        objects.remove()?;
        Ok(loaded)
    }

    fn check(&self) -> Result<(), BenchError> {
        if self.body < STAMP_BYTES as u64 || self.body > BODY_BYTES_MAX as u64 {
            let text = format!("--body is from {STAMP_BYTES} to {BODY_BYTES_MAX} bytes: it carries a time");
            return Err(BenchError::Options(text));
        }
        if self.sweep && self.rate_max < self.rate {
            return Err(BenchError::Options(
                "--rate-max is less than --rate, where the sweep starts".to_owned(),
            ));
        }
        Ok(())
    }

    fn load(
        &self,
        rate: f64,
        objects: &mut Objects,
        context: &Context,
        label: &str,
    ) -> Result<Loaded, BenchError> {
        let acks = self.ack.acks(0, self.prefetch)?;
        let queues = objects.queues(self.queues as usize, &self.queue.kind()?)?;
        let counters = Arc::new(Counters::default());
        let count = self.producers as usize;
        let mut links = Vec::with_capacity(count);
        for _ in 0..count {
            links.push(publisher(&self.broker.uri, !self.no_confirms, &context.stop)?);
        }
        let consumers = Consumers {
            uri: &self.broker.uri,
            count: self.consumers as usize,
            queues: &queues,
            acks,
            prefetch: self.prefetch,
        };
        let consuming = consumers.connect(&context.stop)?;
        let clock = Clock::start();
        let start = clock.now().after(LEAD);
        let from = start.after(self.warm_up);
        let consumers = consumers.members(consuming, &counters, |consumer| consumer.timed(from));
        let templates = self.templates(&queues, objects.frame_max());
        let until = Nanos(from.after(self.seconds).0 - 1);
        let mut due = 0;
        let publishers = links.into_iter().enumerate().map(|(party, link)| {
            // Out of step with each other, so that together they keep the rate.
            let offset = (party as f64 * 1e9 / rate) as u64;
            let pace = Pace::new(Nanos(start.0 + offset), rate / count as f64);
            let mut own = templates.clone();
            own.rotate_left(party % templates.len());
            let messages = pace.due(until);
            due += messages;
            let counters = Arc::clone(&counters);
            Member::new(link, OpenLoop::new(own, pace, messages, !self.no_confirms, from, counters))
        });
        let mut groups = spread(publishers.collect(), 1);
        groups.extend(spread(consumers, 1));
        let load = Load { clock, counters, groups, publishers: count as u64 };
        let plan = RunPlan {
            // Publishers end by themselves. A broker that has fallen behind may catch up for this long.
            duration: LEAD + self.warm_up + self.seconds + self.patience,
            expected: Expected { copies: 1, before: 0, acks: self.ack != AckMode::Auto },
            patience: self.patience,
            stalled_after: None,
            process: self.broker.process(),
            stop: &context.stop,
            label,
            quiet: context.quiet,
        };
        Ok(Loaded { outcome: run(load, &plan)?, due })
    }

    fn templates(&self, queues: &[String], frame_max: usize) -> Vec<Template> {
        let envelope = Envelope::new("", false, &properties(self.queue.persistent));
        let body = usize::try_from(self.body).expect("checked against the limit");
        queues.iter().map(|queue| Template::new(&envelope, queue, body, frame_max)).collect()
    }
}
