//! Things that come and go: connections, channels, queues, and how long each takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::client::{Client, Objects, QueueKind, unique_prefix};
use crate::engine::histograms::{latencies, record_duration};
use crate::engine::progress::ProgressLine;
use crate::error::BenchError;
use crate::options::{BrokerArgs, Context, seconds};
use crate::process::Meter;
use crate::report::figures::quantiles;
use crate::report::{Better, Figure, Report, Unit};
use crate::threads::join;

/// What comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// TCP connection, login, a channel, and the close handshake.
    Connections,
    /// Open and close, on a connection that stays.
    Channels,
    /// Declare and delete.
    Queues,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Connections => "connections",
            Kind::Channels => "channels",
            Kind::Queues => "queues",
        }
    }
}

/// What to measure.
#[derive(Args, Clone, Debug, Serialize)]
pub struct ChurnArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// What comes and goes; several one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "connections,channels,queues")]
    pub kind: Vec<Kind>,
    /// How many at the same time, each on a thread.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub clients: u32,
    /// Durable queues; the others are exclusive, as reply queues are.
    #[arg(long)]
    pub durable: bool,
    /// How long for each kind.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
}

impl ChurnArgs {
    /// Measures.
    ///
    /// # Errors
    /// When the broker refuses or fails.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        let objects = Objects::new(&self.broker.uri)?;
        let mut report = Report::new("churn", self).of(&self.broker.uri, objects.broker());
        for kind in &self.kind {
            if context.stop.is_set() {
                report.interrupted = true;
                break;
            }
            self.measure(*kind, context, &mut report)?;
        }
        Ok(report)
    }

    fn measure(&self, kind: Kind, context: &Context, report: &mut Report) -> Result<(), BenchError> {
        let name = kind.name();
        let meter = Meter::start(self.broker.process())?;
        let (times, seconds) = self.all(kind, context)?;
        let (cpu, count) = (meter.used()?, times.len());
        report.push(Figure::count(name, count));
        let rate = count as f64 / seconds.max(f64::MIN_POSITIVE);
        report.push(Figure::good(format!("{name}_per_s"), rate, Unit::PerSecond, Better::Higher));
        let each = |seconds: f64| seconds * 1e6 / count.max(1) as f64;
        if let Some(broker) = cpu.broker_s {
            let name = format!("{name}_broker_cpu_us");
            report.push(Figure::good(name, each(broker), Unit::Micros, Better::Lower));
        }
        report.push(Figure::new(format!("{name}_generator_cpu_us"), each(cpu.own_s), Unit::Micros));
        report.figures.extend(quantiles(name, &times).into_iter().skip(1));
        report.histograms.0.insert(name, times);
        Ok(())
    }

    /// All clients together: the times of all rounds, and how long they took.
    fn all(&self, kind: Kind, context: &Context) -> Result<(Histogram<u64>, f64), BenchError> {
        let began = Instant::now();
        let done = AtomicU64::new(0);
        let on = || began.elapsed() < self.seconds && !context.stop.is_set();
        let results = thread::scope(|scope| {
            let done = &done;
            let threads: Vec<_> =
                (0..self.clients).map(|_| scope.spawn(move || self.client(kind, on, done))).collect();
            let mut line = ProgressLine::new("churn", context.quiet);
            while on() && !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
                thread::sleep(Duration::from_millis(20));
                let per_second = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
                line.show(&format!("{} {per_second:.0}/s", kind.name()));
            }
            threads.into_iter().map(join).collect::<Vec<Result<Histogram<u64>, BenchError>>>()
        });
        let seconds = began.elapsed().as_secs_f64();
        let mut all = latencies();
        for result in results {
            all.add(result?).expect("all have the same bounds");
        }
        Ok((all, seconds))
    }

    fn client(
        &self,
        kind: Kind,
        on: impl Fn() -> bool,
        done: &AtomicU64,
    ) -> Result<Histogram<u64>, BenchError> {
        let mut times = latencies();
        // Durable queues outlive a lost connection: they are removed when this is dropped.
        let mut objects = Objects::new(&self.broker.uri)?;
        let mut client = Client::connect_with_channel(&self.broker.uri)?;
        let exclusive = QueueKind { exclusive: true, ..QueueKind::default() };
        let durable = QueueKind { durable: true, ..QueueKind::default() };
        let name = unique_prefix();
        while on() {
            let began = Instant::now();
            match kind {
                Kind::Connections => Client::connect_with_channel(&self.broker.uri)?.close(),
                Kind::Channels => {
                    client.open_channel(2)?;
                    client.close_channel(2)?;
                }
                Kind::Queues if self.durable => {
                    objects.queues(1, &durable)?;
                    objects.delete_last()?;
                }
                Kind::Queues => {
                    client.declare_queue(&name, &exclusive)?;
                    client.delete_queue(&name)?;
                }
            }
            record_duration(&mut times, began.elapsed());
            done.fetch_add(1, Ordering::Relaxed);
        }
        client.close();
        objects.remove()?;
        Ok(times)
    }
}
