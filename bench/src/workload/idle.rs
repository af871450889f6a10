//! Connections that do nothing: what each costs the broker's memory, and what they cost its CPU together.
//!
//! Memory is told by a broker that has just started: one that has done other things has room left from those.

use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::client::Client;
use crate::engine::progress::ProgressLine;
use crate::error::BenchError;
use crate::limits::CONNECTIONS_MAX;
use crate::options::{BrokerArgs, Context, seconds};
use crate::process::Process;
use crate::report::{Better, Figure, Report, Unit};
use crate::wire::encode::HEARTBEAT_FRAME;

/// Opened before the first look at memory and closed again, so that what a broker allocates once is not counted.
const WARM_UP: u32 = 50;
/// Descriptors that the process needs besides.
const DESCRIPTORS: u64 = 64;
/// For the broker's collectors and timers to come to rest.
const SETTLE: Duration = Duration::from_secs(1);

/// What to measure.
#[derive(Args, Clone, Debug, Serialize)]
pub struct IdleArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Connections.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX as i64))]
    pub connections: u32,
    /// Channels on each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=2047))]
    pub channels: u16,
    /// Ask for heartbeats, and send them; 0: none.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub heartbeat: u16,
    /// How long to watch the broker's CPU.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
}

impl IdleArgs {
    /// Measures.
    ///
    /// # Errors
    /// When the broker refuses or fails, or its process is not named.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        let Some(process) = self.broker.process() else {
            let text = "memory and CPU are read from the broker's process: give --pid";
            return Err(BenchError::Options(text.to_owned()));
        };
        raise_open_files(u64::from(self.connections) + DESCRIPTORS)?;
        for client in self.open(WARM_UP.min(self.connections), context)? {
            client.close();
        }
        context.stop.sleep(SETTLE);
        let before = process.resident_bytes()?;
        let clients = self.open(self.connections, context)?;
        let mut report = Report::new("idle", self);
        if let Some(client) = clients.first() {
            report = report.of(&self.broker.uri, client.broker.clone());
        }
        let connected = clients.len() as u64;
        report.push(Figure::count("connections", connected));
        let cpu = self.watch(process, clients, context)?;
        let (after, clients) = (process.resident_bytes()?, cpu.clients);
        let each = after.saturating_sub(before) as f64 / connected.max(1) as f64;
        report.push(Figure::good("bytes_per_connection", each, Unit::Bytes, Better::Lower));
        report.push(Figure::new("broker_resident_bytes", after as f64, Unit::Bytes));
        report.push(Figure::new("watched_s", cpu.watched_s, Unit::Seconds));
        let share = cpu.used_s / cpu.watched_s.max(f64::MIN_POSITIVE);
        report.push(Figure::good("broker_cores", share, Unit::Ratio, Better::Lower));
        clients.into_iter().for_each(Client::close);
        report.interrupted = context.stop.is_set();
        Ok(report)
    }

    fn open(&self, count: u32, context: &Context) -> Result<Vec<Client>, BenchError> {
        let mut line = ProgressLine::new("idle", context.quiet);
        let mut clients = Vec::with_capacity(count as usize);
        for number in 0..count {
            if context.stop.is_set() {
                return Err(BenchError::Interrupted);
            }
            let mut client = Client::connect_with_heartbeat(&self.broker.uri, self.heartbeat)?;
            for channel in 1..=self.channels {
                client.open_channel(channel)?;
            }
            clients.push(client);
            if number % 100 == 99 {
                line.show(&format!("{} connections", number + 1));
            }
        }
        Ok(clients)
    }

    /// Watches, and keeps the connections alive.
    fn watch(
        &self,
        process: Process,
        mut clients: Vec<Client>,
        context: &Context,
    ) -> Result<Watched, BenchError> {
        context.stop.sleep(SETTLE);
        let (cpu, began) = (process.cpu_seconds()?, Instant::now());
        let every = match self.heartbeat {
            0 => self.seconds,
            heartbeat => Duration::from_secs(u64::from(heartbeat)) / 2,
        };
        loop {
            let left = self.seconds.saturating_sub(began.elapsed());
            if left.is_zero() || !context.stop.sleep(left.min(every)) {
                break;
            }
            if self.heartbeat > 0 {
                for client in &mut clients {
                    client.send_raw(&HEARTBEAT_FRAME)?;
                }
            }
        }
        let watched_s = began.elapsed().as_secs_f64();
        Ok(Watched { clients, used_s: process.cpu_seconds()? - cpu, watched_s })
    }
}

struct Watched {
    clients: Vec<Client>,
    used_s: f64,
    watched_s: f64,
}

fn raise_open_files(needed: u64) -> Result<(), BenchError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        let text = format!("{needed} open files are needed and the limit is {:?}: ulimit -n", limit.maximum);
        return Err(BenchError::Options(text));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })
        .map_err(|error| std::io::Error::from(error).into())
}
