//! Options that several workloads have.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::client::QueueKind;
use crate::error::BenchError;
use crate::process::Process;
use crate::stop::Stop;
use crate::uri::BrokerUri;

/// The broker.
#[derive(Args, Clone, Debug, Serialize)]
pub struct BrokerArgs {
    /// The broker.
    #[arg(long, value_name = "URI", default_value = "amqp://guest:guest@127.0.0.1:5672/")]
    #[serde(skip)]
    pub uri: BrokerUri,
    /// The broker's process on this machine: its CPU time and memory are reported.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

impl BrokerArgs {
    /// The process, if one was named.
    pub fn process(&self) -> Option<Process> {
        self.pid.map(Process)
    }
}

/// Where figures go.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// Print one JSON object instead of a table.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV, one line for each figure, instead of a table.
    #[arg(long)]
    pub csv: bool,
    /// Write the percentile distribution, as HdrHistogram's tools read it; one file for each of several latencies.
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,
    /// Write percentile curves and rates over time.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// No progress on the terminal.
    #[arg(long, short)]
    pub quiet: bool,
}

/// How queues are declared.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct QueueArgs {
    /// Durable queues and delivery mode 2.
    #[arg(long)]
    pub persistent: bool,
    /// An argument of all queues, such as x-queue-type=quorum; may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    pub queue_arg: Vec<String>,
}

impl QueueArgs {
    /// What to declare.
    ///
    /// # Errors
    /// When an argument has no value.
    pub fn kind(&self) -> Result<QueueKind, BenchError> {
        let mut kind = QueueKind { durable: self.persistent, ..QueueKind::default() };
        for text in &self.queue_arg {
            let parsed = crate::client::parse_argument(text);
            let (key, value) =
                parsed.map_err(|reason| BenchError::Options(format!("--queue-arg {text}: {reason}")))?;
            kind.arguments.insert(key.into(), value);
        }
        Ok(kind)
    }
}

/// What every workload gets.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The wish to end early.
    pub stop: Stop,
    /// No progress on the terminal.
    pub quiet: bool,
}

/// Seconds, with a fraction if need be.
///
/// # Errors
/// When it is no time, or more than a month.
pub fn seconds(text: &str) -> Result<Duration, String> {
    const MONTH: f64 = 31.0 * 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=MONTH).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is not a number of seconds up to a month")),
    }
}

/// A rate above zero.
///
/// # Errors
/// When it is none.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!("'{text}' is not a rate above 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_positive_numbers() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(rate("1e3"), Ok(1000.0));
        for wrong in ["", "-1", "NaN", "inf", "x", "1e99"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "0", "-1", "NaN", "inf"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn queue_arguments_are_passed_on() {
        let args = QueueArgs { persistent: true, queue_arg: vec!["x-max-length=5".into()] };
        let kind = args.kind().unwrap();
        assert!(kind.durable && kind.arguments.contains_key("x-max-length"));
        assert!(QueueArgs { queue_arg: vec!["x".into()], ..QueueArgs::default() }.kind().is_err());
    }
}
