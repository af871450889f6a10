//! Fill a queue, then drain it: rates of both, and what the backlog costs in memory.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::parties::{AckMode, Consumers, properties, publisher, spread};
use crate::client::Objects;
use crate::clock::Clock;
use crate::engine::counters::Counters;
use crate::engine::group::Member;
use crate::engine::producer::{Producer, ProducerPlan};
use crate::engine::run::{Expected, Load, Outcome, RunPlan, run};
use crate::error::BenchError;
use crate::limits::CONNECTIONS_MAX;
use crate::options::{BrokerArgs, Context, QueueArgs, seconds};
use crate::process::Process;
use crate::report::{Better, Figure, Report, Unit};
use crate::wire::deck::{BodySizes, Deck, size};
use crate::wire::encode::Envelope;

/// What to fill and drain.
#[derive(Args, Clone, Debug, Serialize)]
pub struct BacklogArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Messages [default: 1000000, or as many as --bytes takes].
    #[arg(long, value_name = "N", conflicts_with = "bytes", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Bytes of all bodies together, such as 10g.
    #[arg(long, value_parser = size)]
    pub bytes: Option<u64>,
    /// Bytes of each body, as for throughput.
    #[arg(long, default_value = "1024", value_name = "SIZES")]
    pub body: BodySizes,
    #[command(flatten)]
    pub queue: QueueArgs,
    /// Publisher confirms, at most so many outstanding; 0: none.
    #[arg(long, default_value_t = 1000, value_name = "WINDOW")]
    pub confirm: u64,
    /// Connections that drain.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    pub consumers: u32,
    /// Unacked messages of each consumer at most; 0: no limit.
    #[arg(long, default_value_t = 1000)]
    pub prefetch: u16,
    /// How deliveries are acked.
    #[arg(long, value_enum, default_value = "multiple")]
    pub ack: AckMode,
    /// How long filling, and draining, may take at most.
    #[arg(long, default_value = "3600", value_parser = seconds, value_name = "SECONDS")]
    pub seconds_max: Duration,
    /// How long to wait while nothing more comes.
    #[arg(long, default_value = "30", value_parser = seconds, value_name = "SECONDS")]
    pub patience: Duration,
}

impl BacklogArgs {
    /// Fills and drains.
    ///
    /// # Errors
    /// When options contradict each other, or the broker refuses or fails.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        let prefetch = if self.ack == AckMode::Auto { 0 } else { self.prefetch };
        let acks = self.ack.acks(0, prefetch)?;
        let mut objects = Objects::new(&self.broker.uri)?;
        let mut report = Report::new("backlog", self).of(&self.broker.uri, objects.broker());
        let queues = objects.queues(1, &self.queue.kind()?)?;
        let resident = self.broker.process().map(Process::resident_bytes).transpose()?;

        let filled = self.fill(&queues[0], objects.frame_max(), context)?;
        let taken = filled.totals.sent - filled.totals.nacked;
        report_phase(&mut report, "fill", &filled, filled.totals.sent);
        report.push(Figure::count("sent", filled.totals.sent));
        report.push(Figure::count("confirmed", filled.totals.confirmed));
        report.push(Figure::count("nacked", filled.totals.nacked));
        if let (Some(before), Some(after)) = (resident, filled.broker_memory) {
            let each = after.resident.saturating_sub(before) as f64 / taken.max(1) as f64;
            report.push(Figure::good("memory_bytes_per_message", each, Unit::Bytes, Better::Lower));
            report.push(Figure::good("broker_peak_bytes", after.peak as f64, Unit::Bytes, Better::Lower));
        }
        if filled.totals.blocked > 0 {
            report.notes.push(format!("the broker blocked the publisher {} times", filled.totals.blocked));
        }
        if filled.interrupted {
            report.interrupted = true;
            return Ok(report);
        }
        let consumers = Consumers {
            uri: &self.broker.uri,
            count: self.consumers as usize,
            queues: &queues,
            acks,
            prefetch,
        };
        let drained = self.drain(&consumers, taken, context)?;
        report_phase(&mut report, "drain", &drained, drained.totals.delivered);
        report.push(Figure::count("delivered", drained.totals.delivered));
        report.push(Figure::count("redelivered", drained.totals.redelivered));
        report.push(Figure::count("acked", drained.totals.acked));
        report.push(Figure::count("missing", drained.missing));
        report.interrupted = drained.interrupted;
        report.samples = filled.samples;
        let offset = filled.total_s;
        report.samples.extend(drained.samples.into_iter().map(|mut sample| {
            sample.seconds += offset;
            sample
        }));
        objects.remove()?;
        Ok(report)
    }

    fn fill(&self, queue: &str, frame_max: usize, context: &Context) -> Result<Outcome, BenchError> {
        let envelope = Envelope::new("", false, &properties(self.queue.persistent));
        let deck = Deck::new(&[(envelope, queue.to_owned())], &self.body, frame_max, 0, 1);
        let messages = match (self.messages, self.bytes) {
            (Some(messages), _) => messages,
            (None, Some(bytes)) => ((bytes as f64 / deck.mean_body_bytes().max(1.0)) as u64).max(1),
            (None, None) => 1_000_000,
        };
        let counters = Arc::new(Counters::default());
        let link = publisher(&self.broker.uri, self.confirm > 0, &context.stop)?;
        let window = (self.confirm > 0).then_some(self.confirm);
        let plan = ProducerPlan { window, pace: None, messages: Some(messages) };
        let member = Member::new(link, Producer::new(Arc::new(deck), plan, Arc::clone(&counters)));
        let load = Load { clock: Clock::start(), counters, groups: vec![vec![member]], publishers: 1 };
        run(load, &self.plan(Expected::default(), context, "fill"))
    }

    fn drain(
        &self,
        consumers: &Consumers<'_>,
        messages: u64,
        context: &Context,
    ) -> Result<Outcome, BenchError> {
        let counters = Arc::new(Counters::default());
        // What comes while they connect is in the sockets; the time counts from before.
        let clock = Clock::start();
        let links = consumers.connect(&context.stop)?;
        let members = consumers.members(links, &counters, |consumer| consumer);
        let load = Load { clock, counters, groups: spread(members, 1), publishers: 0 };
        let expected = Expected { copies: 0, before: messages, acks: self.ack != AckMode::Auto };
        run(load, &self.plan(expected, context, "drain"))
    }

    fn plan<'a>(&self, expected: Expected, context: &'a Context, label: &'a str) -> RunPlan<'a> {
        RunPlan {
            duration: self.seconds_max,
            expected,
            patience: self.patience,
            stalled_after: Some(self.patience),
            process: self.broker.process(),
            stop: &context.stop,
            label,
            quiet: context.quiet,
        }
    }
}

fn report_phase(report: &mut Report, phase: &str, outcome: &Outcome, messages: u64) {
    let seconds = outcome.total_s.max(f64::MIN_POSITIVE);
    report.push(Figure::new(format!("{phase}_s"), outcome.total_s, Unit::Seconds));
    let rate = messages as f64 / seconds;
    report.push(Figure::good(format!("{phase}_per_s"), rate, Unit::PerSecond, Better::Higher));
    if let Some(cpu) = outcome.broker_cpu_s {
        let per_million = cpu * 1e6 / messages.max(1) as f64;
        let name = format!("{phase}_broker_cpu_s_per_million");
        report.push(Figure::good(name, per_million, Unit::Seconds, Better::Lower));
    }
}
