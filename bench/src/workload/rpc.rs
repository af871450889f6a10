//! Requests and replies: a caller waits for the reply to each request, over direct reply-to or a queue of its own.
//!
//! Callers and the responder are blocking clients on threads: a call is a round trip, and nothing else is measured.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amq_protocol::protocol::basic::AMQPProperties;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::client::{Client, Objects, QueueKind};
use crate::engine::histograms::{Histograms, latencies, record_duration};
use crate::engine::progress::ProgressLine;
use crate::error::BenchError;
use crate::limits::BODY_BYTES_MAX;
use crate::options::{BrokerArgs, Context, seconds};
use crate::process::Meter;
use crate::report::figures::quantiles;
use crate::report::{Better, Figure, Report, Unit};
use crate::threads::join;
use crate::wire::deck::size;
use crate::wire::encode::Envelope;

/// The pseudo-queue of direct reply-to.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// How replies come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// Direct reply-to: no queue in between.
    #[default]
    Direct,
    /// An exclusive queue of each caller.
    Queue,
}

/// What to measure.
#[derive(Args, Clone, Debug, Serialize)]
pub struct RpcArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// How replies come back.
    #[arg(long, value_enum, default_value_t)]
    pub reply: Reply,
    /// Callers, each on a thread with one request at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub callers: u32,
    /// Bytes of requests and replies.
    #[arg(long, default_value = "16", value_parser = size, value_name = "BYTES")]
    pub body: u64,
    /// How long.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
}

#[derive(Default)]
struct Shared {
    /// Callers are done.
    over: AtomicBool,
    requests: AtomicU64,
    replies: AtomicU64,
    served: AtomicU64,
}

impl RpcArgs {
    /// Measures.
    ///
    /// # Errors
    /// When the broker refuses (some have no direct reply-to) or fails.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        if self.body > BODY_BYTES_MAX as u64 {
            return Err(BenchError::Options(format!("--body is at most {BODY_BYTES_MAX} bytes")));
        }
        let mut objects = Objects::new(&self.broker.uri)?;
        let mut report = Report::new("rpc", self).of(&self.broker.uri, objects.broker());
        let queue = objects.queues(1, &QueueKind::default())?.remove(0);
        let callers = (0..self.callers)
            .map(|_| Caller::new(self, &queue))
            .collect::<Result<Vec<_>, _>>()
            .map_err(explain)?;
        let mut responder = Client::connect_with_channel(&self.broker.uri)?;
        responder.consume(&queue, "responder", true)?;

        let meter = Meter::start(self.broker.process())?;
        let began = Instant::now();
        let shared = Shared::default();
        let times = self.all(callers, responder, &shared, began, context)?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu = meter.used()?;

        let replies = shared.replies.load(Ordering::Relaxed);
        report.push(Figure::count("requests", shared.requests.load(Ordering::Relaxed)));
        report.push(Figure::count("served", shared.served.load(Ordering::Relaxed)));
        report.push(Figure::count("replies", replies));
        report.push(Figure::good(
            "round_trips_per_s",
            replies as f64 / seconds,
            Unit::PerSecond,
            Better::Higher,
        ));
        let each = |seconds: f64| seconds * 1e6 / replies.max(1) as f64;
        if let Some(broker) = cpu.broker_s {
            let name = "broker_cpu_us_per_round_trip";
            report.push(Figure::good(name, each(broker), Unit::Micros, Better::Lower));
        }
        report.push(Figure::new("generator_cpu_us_per_round_trip", each(cpu.own_s), Unit::Micros));
        report.figures.extend(quantiles("round-trip", &times));
        report.histograms = Histograms::one("round-trip", times);
        report.interrupted = context.stop.is_set();
        objects.remove()?;
        Ok(report)
    }

    fn all(
        &self,
        callers: Vec<Caller>,
        responder: Client,
        shared: &Shared,
        began: Instant,
        context: &Context,
    ) -> Result<Histogram<u64>, BenchError> {
        let on = || {
            began.elapsed() < self.seconds && !context.stop.is_set() && !shared.over.load(Ordering::Relaxed)
        };
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let result = respond(responder, shared);
                shared.over.store(true, Ordering::Relaxed);
                result
            });
            let calling: Vec<_> =
                callers.into_iter().map(|caller| scope.spawn(|| caller.call(on, shared))).collect();
            let mut line = ProgressLine::new("rpc", context.quiet);
            while on() && !calling.iter().any(thread::ScopedJoinHandle::is_finished) {
                thread::sleep(Duration::from_millis(20));
                let rate = shared.replies.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
                line.show(&format!("{rate:.0} round trips/s"));
            }
            drop(line);
            let mut times = latencies();
            let results: Vec<_> = calling.into_iter().map(join).collect();
            shared.over.store(true, Ordering::Relaxed);
            join(serving)?;
            for result in results {
                times.add(result?).expect("all have the same bounds");
            }
            Ok(times)
        })
    }
}

/// A refusal of the pseudo-queue means that the broker has no direct reply-to: say what to do instead.
fn explain(error: BenchError) -> BenchError {
    match error {
        BenchError::Refused { what, code, text } if what.contains(REPLY_TO) => BenchError::Refused {
            what: "direct reply-to".to_owned(),
            code,
            text: format!("{text} (--reply queue measures with reply queues)"),
        },
        other => other,
    }
}

struct Caller {
    client: Client,
    request: Vec<u8>,
}

impl Caller {
    fn new(args: &RpcArgs, queue: &str) -> Result<Caller, BenchError> {
        let mut client = Client::connect_with_channel(&args.broker.uri)?;
        let reply_to = match args.reply {
            Reply::Direct => REPLY_TO.to_owned(),
            // Exclusive: gone with the connection.
            Reply::Queue => {
                client.declare_queue("", &QueueKind { exclusive: true, ..QueueKind::default() })?
            }
        };
        client.consume(&reply_to, "caller", true)?;
        let properties = AMQPProperties::default().with_reply_to(reply_to.into());
        let mut request = Vec::new();
        let body = vec![b'x'; args.body as usize];
        Envelope::new("", false, &properties).put(&mut request, queue, &body, client.frame_max);
        Ok(Caller { client, request })
    }

    fn call(mut self, on: impl Fn() -> bool, shared: &Shared) -> Result<Histogram<u64>, BenchError> {
        let mut times = latencies();
        while on() {
            let began = Instant::now();
            self.client.send_raw(&self.request)?;
            shared.requests.fetch_add(1, Ordering::Relaxed);
            self.client.due_message()?;
            record_duration(&mut times, began.elapsed());
            shared.replies.fetch_add(1, Ordering::Relaxed);
        }
        self.client.close();
        Ok(times)
    }
}

fn respond(mut client: Client, shared: &Shared) -> Result<(), BenchError> {
    let plain = Envelope::new("", false, &AMQPProperties::default());
    let mut reply = Vec::new();
    client.wait_in_small_steps()?;
    while let Some(message) = client.next_message(|| !shared.over.load(Ordering::Relaxed))? {
        reply.clear();
        let to = message
            .reply_to
            .ok_or_else(|| BenchError::Unexpected("a request without reply-to".to_owned()))?;
        plain.put(&mut reply, &to, &message.body, client.frame_max);
        client.send_raw(&reply)?;
        shared.served.fetch_add(1, Ordering::Relaxed);
    }
    client.close();
    Ok(())
}
