//! One message to many queues, beside one message to one queue: what a copy costs compared with a plain delivery.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::parties::AckMode;
use super::throughput::{ExchangeKind, ThroughputArgs};
use crate::client::Objects;
use crate::engine::run::Outcome;
use crate::error::BenchError;
use crate::limits::{CONNECTIONS_MAX, QUEUES_MAX};
use crate::options::{BrokerArgs, Context, QueueArgs, rate, seconds};
use crate::report::figures::of_outcome;
use crate::report::{Better, Figure, Report, Step, Unit};
use crate::wire::deck::BodySizes;

/// What to put on the broker.
#[derive(Args, Clone, Debug, Serialize)]
pub struct FanoutArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Queues that each message goes to.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=QUEUES_MAX as i64))]
    pub queues: u32,
    /// Connections that consume; with fewer than there are queues, each consumes from several.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    pub consumers: u32,
    #[command(flatten)]
    pub queue: QueueArgs,
    /// Bytes of each body, as for throughput.
    #[arg(long, default_value = "1024", value_name = "SIZES")]
    pub body: BodySizes,
    /// Publisher confirms, at most so many outstanding; they keep the publisher from running ahead. To one queue it
    /// is so many times the number of queues. 0: none.
    #[arg(long, default_value_t = 50, value_name = "WINDOW")]
    pub confirm: u64,
    /// Messages a second [default: as many as go through].
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// How long, each: to one queue, and to all.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
    /// How long to wait, once the publisher has ended, while nothing more comes.
    #[arg(long, default_value = "5", value_parser = seconds, value_name = "SECONDS")]
    pub patience: Duration,
}

impl FanoutArgs {
    /// Runs it.
    ///
    /// # Errors
    /// When the broker refuses or fails.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        let mut objects = Objects::new(&self.broker.uri)?;
        let mut report = Report::new("fanout", self).of(&self.broker.uri, objects.broker());
        let mut plain = self.throughput(ExchangeKind::Default, 1);
        // As many deliveries under way as in the other part: batches are as large, and deliveries as cheap.
        plain.confirm *= u64::from(self.queues);
        let plain = plain.load(&mut objects, context, "one queue")?;
        objects.remove()?;
        report.interrupted = plain.interrupted;
        if plain.interrupted {
            return Ok(report);
        }
        let fanout = self.throughput(ExchangeKind::Fanout, self.queues);
        let all = fanout.load(&mut objects, context, "all queues")?;
        let plain_cost = per_delivery(&plain);
        report.steps = vec![step("one queue", &plain), step("all queues", &all)];
        let cost = per_delivery(&all);
        report.take(all, true);
        if let (Some(plain), Some(cost)) = (plain_cost, cost) {
            let ratio = cost / plain.max(f64::MIN_POSITIVE);
            report.push(Figure::good("cpu_to_plain_delivery_ratio", ratio, Unit::Ratio, Better::Lower));
        }
        objects.remove()?;
        Ok(report)
    }

    fn throughput(&self, exchange: ExchangeKind, queues: u32) -> ThroughputArgs {
        ThroughputArgs {
            broker: self.broker.clone(),
            producers: 1,
            consumers: self.consumers.min(queues),
            queues,
            queue: self.queue.clone(),
            exchange,
            keys: 0,
            fan_out: 1,
            unmatched: 0,
            body: self.body.clone(),
            confirm: self.confirm,
            mandatory: false,
            prefetch: 0,
            ack: AckMode::Auto,
            ack_every: 0,
            rate: self.rate,
            seconds: self.seconds,
            messages: None,
            patience: self.patience,
            threads: 1,
        }
    }
}

fn per_delivery(outcome: &Outcome) -> Option<f64> {
    Some(outcome.broker_cpu_s? / outcome.totals.delivered.max(1) as f64)
}

fn step(name: &str, outcome: &Outcome) -> Step {
    let shown = ["sent", "delivered", "missing", "delivered_per_s", "broker_cpu_s_per_million"];
    let mut figures = of_outcome(outcome, true);
    figures.retain(|figure| shown.contains(&&*figure.name));
    Step { name: name.to_owned(), figures }
}
