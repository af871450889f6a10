//! As many messages as go through, or a given rate: publishers fill sockets, consumers count.

use std::sync::Arc;
use std::time::Duration;

use amq_protocol::types::{AMQPValue, FieldTable};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::parties::{AckMode, Consumers, properties, publisher, share, spread};
use crate::client::{Link, Objects};
use crate::clock::{Clock, Nanos};
use crate::engine::counters::Counters;
use crate::engine::group::Member;
use crate::engine::pace::Pace;
use crate::engine::producer::{Producer, ProducerPlan};
use crate::engine::run::{Expected, Load, Outcome, RunPlan, run};
use crate::error::BenchError;
use crate::limits::{CONNECTIONS_MAX, QUEUES_MAX};
use crate::options::{BrokerArgs, Context, QueueArgs, rate, seconds};
use crate::report::Report;
use crate::stop::Stop;
use crate::wire::deck::{Addressed, BodySizes, Deck};
use crate::wire::encode::Envelope;

/// Which exchange messages go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeKind {
    /// The one without a name: the routing key is the queue's name.
    #[default]
    Default,
    /// Each key is bound as it is.
    Direct,
    /// Every queue gets every message.
    Fanout,
    /// Each key is bound by a pattern with a wildcard.
    Topic,
    /// Messages carry a header, and bindings ask for it.
    Headers,
}

impl ExchangeKind {
    fn name(self) -> &'static str {
        match self {
            ExchangeKind::Default => "",
            ExchangeKind::Direct => "direct",
            ExchangeKind::Fanout => "fanout",
            ExchangeKind::Topic => "topic",
            ExchangeKind::Headers => "headers",
        }
    }
}

/// What to put on the broker.
#[derive(Args, Clone, Debug, Serialize)]
pub struct ThroughputArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Connections that publish; with fewer than there are keys, each publishes to several in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=CONNECTIONS_MAX as i64))]
    pub producers: u32,
    /// Connections that consume; with fewer than there are queues, each consumes from several.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=CONNECTIONS_MAX as i64))]
    pub consumers: u32,
    /// Queues.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=QUEUES_MAX as i64))]
    pub queues: u32,
    #[command(flatten)]
    pub queue: QueueArgs,
    /// The exchange's type.
    #[arg(long, value_enum, default_value_t)]
    pub exchange: ExchangeKind,
    /// Routing keys, if more than there are queues: several keys then lead to the same queue.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=QUEUES_MAX as i64))]
    pub keys: u32,
    /// Queues that each routing key leads to; a fanout exchange leads to all.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=QUEUES_MAX as i64))]
    pub fan_out: u32,
    /// Further bindings of the exchange that no message matches.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub unmatched: u32,
    /// Bytes of each body: 1024, 100-2000, or sizes with weights 16:90,64k:10.
    #[arg(long, default_value = "16", value_name = "SIZES")]
    pub body: BodySizes,
    /// Publisher confirms, at most so many outstanding on each connection; 0: none.
    #[arg(long, default_value_t = 0, value_name = "WINDOW")]
    pub confirm: u64,
    /// Ask for unroutable messages to come back.
    #[arg(long)]
    pub mandatory: bool,
    /// Unacked messages of each consumer at most; 0: no limit.
    #[arg(long, default_value_t = 0)]
    pub prefetch: u16,
    /// How deliveries are acked.
    #[arg(long, value_enum, default_value_t)]
    pub ack: AckMode,
    /// With --ack multiple: messages for each ack; 0: as many as one read brings.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub ack_every: u64,
    /// Messages a second of all producers together [default: as many as go through].
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// How long publishers publish.
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub seconds: Duration,
    /// Messages of each producer at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// How long to wait, once publishers have ended, while nothing more comes.
    #[arg(long, default_value = "5", value_parser = seconds, value_name = "SECONDS")]
    pub patience: Duration,
    /// Threads for producers, and as many for consumers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
}

impl ThroughputArgs {
    /// Runs it.
    ///
    /// # Errors
    /// When options contradict each other, or the broker refuses or fails.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        let mut objects = Objects::new(&self.broker.uri)?;
        let mut report = Report::new("throughput", self).of(&self.broker.uri, objects.broker());
        let outcome = self.load(&mut objects, context, "throughput")?;
        report.take(outcome, self.consumers > 0);
        objects.remove()?;
        Ok(report)
    }

    /// One run, with objects that the caller removes.
    pub(crate) fn load(
        &self,
        objects: &mut Objects,
        context: &Context,
        label: &str,
    ) -> Result<Outcome, BenchError> {
        self.check()?;
        let acks = self.ack.acks(self.ack_every, self.prefetch)?;
        let queues = objects.queues(self.queues as usize, &self.queue.kind()?)?;
        let routes = Routes::declare(self, &queues, objects)?;
        let counters = Arc::new(Counters::default());
        let consumers = Consumers {
            uri: &self.broker.uri,
            count: self.consumers as usize,
            queues: &queues,
            acks,
            prefetch: self.prefetch,
        };
        let links = consumers.connect(&context.stop)?;
        let consumers = consumers.members(links, &counters, |consumer| consumer);
        let (publishing, decks) = self.publishing(&routes, objects.frame_max(), &context.stop)?;
        // Now that everything is encoded: a rate counts from here.
        let clock = Clock::start();
        let producers = self.producers(publishing, &decks, &counters, clock.now());
        let threads = self.threads as usize;
        let mut groups = spread(consumers, threads);
        groups.extend(spread(producers, threads));
        let load = Load { clock, counters, groups, publishers: u64::from(self.producers) };
        let copies = if self.consumers > 0 { routes.copies } else { 0 };
        let plan = RunPlan {
            duration: self.seconds,
            expected: Expected { copies, before: 0, acks: self.consumers > 0 && self.ack != AckMode::Auto },
            patience: self.patience,
            stalled_after: None,
            process: self.broker.process(),
            stop: &context.stop,
            label,
            quiet: context.quiet,
        };
        run(load, &plan)
    }

    fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: &str| Err(BenchError::Options(text.to_owned()));
        let is_default = self.exchange == ExchangeKind::Default;
        match () {
            () if self.producers == 0 => wrong("nobody publishes: --producers is 0"),
            () if is_default && self.fan_out > 1 => {
                wrong("the default exchange leads to one queue: give --exchange")
            }
            () if is_default && self.keys > self.queues => {
                wrong("keys of the default exchange are queues: give --exchange, or more --queues")
            }
            () if is_default && self.unmatched > 0 => {
                wrong("the default exchange has no bindings: give --exchange")
            }
            () if self.exchange == ExchangeKind::Fanout && self.unmatched > 0 => {
                wrong("every binding of a fanout exchange matches")
            }
            () if self.fan_out > self.queues => wrong("--fan-out is more than --queues"),
            () if self.consumers == 0 && self.ack != AckMode::Auto => wrong("nobody acks: --consumers is 0"),
            () => Ok(()),
        }
    }

    /// Connections that will publish, and what: producers of the same keys share a deck.
    fn publishing(
        &self,
        routes: &Routes,
        frame_max: usize,
        stop: &Stop,
    ) -> Result<(Vec<Link>, Vec<Arc<Deck>>), BenchError> {
        let count = self.producers as usize;
        let links = (0..count)
            .map(|_| publisher(&self.broker.uri, self.confirm > 0, stop))
            .collect::<Result<_, _>>()?;
        let all = count.min(routes.keys.len());
        let deck = |party| {
            let keys = share(count, routes.keys.len(), party);
            let to: Vec<Addressed> = keys.into_iter().map(|key| routes.address(self, key)).collect();
            Arc::new(Deck::new(&to, &self.body, frame_max, party as u64, all))
        };
        Ok((links, (0..all).map(deck).collect()))
    }

    fn producers(
        &self,
        links: Vec<Link>,
        decks: &[Arc<Deck>],
        counters: &Arc<Counters>,
        start: Nanos,
    ) -> Vec<Member> {
        let member = |(party, link)| {
            let pace = self.rate.map(|rate| {
                // Out of step with each other, as producers are.
                let offset = (party as f64 * 1e9 / rate) as u64;
                Pace::new(Nanos(start.0 + offset), rate / f64::from(self.producers))
            });
            let window = (self.confirm > 0).then_some(self.confirm);
            let plan = ProducerPlan { window, pace, messages: self.messages };
            let deck = Arc::clone(&decks[party % decks.len()]);
            Member::new(link, Producer::new(deck, plan, Arc::clone(counters)))
        };
        links.into_iter().enumerate().map(member).collect()
    }
}

/// Routing keys, and what stands behind them.
struct Routes {
    exchange: String,
    keys: Vec<String>,
    /// Queues that a message reaches.
    copies: u64,
}

impl Routes {
    fn declare(
        args: &ThroughputArgs,
        queues: &[String],
        objects: &mut Objects,
    ) -> Result<Routes, BenchError> {
        if args.exchange == ExchangeKind::Default {
            return Ok(Routes { exchange: String::new(), keys: queues.to_vec(), copies: 1 });
        }
        let exchange = objects.exchange(args.exchange.name(), args.queue.persistent)?;
        let count = (args.keys as usize).max(queues.len());
        // All of the same length: a publisher in open loop relies on it, and sizes stay comparable.
        let keys: Vec<String> = (0..count).map(|key| format!("bench.k{key:06}")).collect();
        if args.exchange == ExchangeKind::Fanout {
            for queue in queues {
                objects.bind(queue, &exchange, "", FieldTable::default())?;
            }
            return Ok(Routes { exchange, keys, copies: queues.len() as u64 });
        }
        for (number, key) in keys.iter().enumerate() {
            for step in 0..args.fan_out as usize {
                let queue = &queues[(number + step) % queues.len()];
                let (pattern, arguments) = binding(args.exchange, key);
                objects.bind(queue, &exchange, &pattern, arguments)?;
            }
        }
        for number in 0..args.unmatched {
            let (pattern, arguments) = binding(args.exchange, &format!("bench.other{number:06}"));
            let queue = &queues[number as usize % queues.len()];
            objects.bind(queue, &exchange, &pattern, arguments)?;
        }
        Ok(Routes { exchange, keys, copies: u64::from(args.fan_out) })
    }

    fn address(&self, args: &ThroughputArgs, key: usize) -> Addressed {
        let key = &self.keys[key];
        let mut properties = properties(args.queue.persistent);
        if args.exchange == ExchangeKind::Headers {
            properties = properties.with_headers(header(key));
        }
        (Envelope::new(&self.exchange, args.mandatory, &properties), key.clone())
    }
}

fn binding(kind: ExchangeKind, key: &str) -> (String, FieldTable) {
    match kind {
        ExchangeKind::Topic => (key.replacen("bench", "*", 1), FieldTable::default()),
        ExchangeKind::Headers => {
            let mut arguments = header(key);
            arguments.insert("x-match".into(), AMQPValue::LongString(b"all".to_vec().into()));
            (String::new(), arguments)
        }
        _ => (key.to_owned(), FieldTable::default()),
    }
}

fn header(key: &str) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert("key".into(), AMQPValue::LongString(key.as_bytes().to_vec().into()));
    table
}
