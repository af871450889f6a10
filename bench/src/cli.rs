//! The command line of `lepus bench`: which workload, and where its figures go.

use std::fs;
use std::io::{self, Write as _};

use clap::{Args, Subcommand};

use crate::compare::CompareArgs;
use crate::error::BenchError;
use crate::options::{Context, OutputArgs};
use crate::report::{Report, csv, hgrm, json, plot, table};
use crate::stop::{INTERRUPTED_EXIT, Stop};
use crate::workload::backlog::BacklogArgs;
use crate::workload::churn::ChurnArgs;
use crate::workload::confirms::ConfirmsArgs;
use crate::workload::fanout::FanoutArgs;
use crate::workload::idle::IdleArgs;
use crate::workload::latency::LatencyArgs;
use crate::workload::limit::LimitArgs;
use crate::workload::rpc::RpcArgs;
use crate::workload::throughput::ThroughputArgs;

/// Put load on any AMQP 0-9-1 broker, and compare brokers.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum BenchCommand {
    #[command(flatten)]
    Workload(Workload),
    /// Run workloads against several brokers in turns, and report medians and ratios.
    Compare(CompareArgs),
}

macro_rules! workloads {
    ($($(#[$text:meta])* $name:ident($args:ty),)*) => {
        /// A workload with its options.
        #[derive(Clone, Debug, Subcommand)]
        pub enum Workload {
            $($(#[$text])* $name {
                #[command(flatten)]
                args: Box<$args>,
                #[command(flatten)]
                output: OutputArgs,
            },)*
        }

        impl Workload {
            /// Runs it.
            ///
            /// # Errors
            /// When options contradict each other, or the broker refuses or fails.
            pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
                match self {
                    $(Workload::$name { args, .. } => args.run(context),)*
                }
            }

            /// Where its figures go.
            pub fn output(&self) -> &OutputArgs {
                match self {
                    $(Workload::$name { output, .. } => output,)*
                }
            }
        }
    };
}

workloads! {
    /// As many messages as go through, or a given rate.
    Throughput(ThroughputArgs),
    /// Publish-to-deliver and publish-to-confirm at a fixed rate, in open loop.
    Latency(LatencyArgs),
    /// Connections, channels and queues that come and go.
    Churn(ChurnArgs),
    /// Connections that do nothing: memory of each, and CPU of all (needs --pid, of a broker that has just started).
    Idle(IdleArgs),
    /// Fill a queue, then drain it.
    Backlog(BacklogArgs),
    /// One message to many queues, beside one message to one queue.
    Fanout(FanoutArgs),
    /// Requests and replies, over direct reply-to or reply queues.
    Rpc(RpcArgs),
    /// What the machine itself can do, without any broker.
    Limit(LimitArgs),
    /// Confirms one at a time beside plain synchronous writes on the same disk.
    Confirms(ConfirmsArgs),
}

/// Runs what the command line says. Gives the exit code: 0, or 130 after a signal.
///
/// # Errors
/// When options contradict each other, the broker refuses or fails, or a file cannot be written.
pub fn run(args: &BenchArgs) -> Result<u8, BenchError> {
    let stop = Stop::on_signals()?;
    let interrupted = match &args.command {
        BenchCommand::Workload(workload) => {
            let output = workload.output();
            let report = workload.run(&Context { stop, quiet: output.quiet })?;
            write(&report, output)?;
            report.interrupted
        }
        BenchCommand::Compare(compare) => compare.run(&stop)?,
    };
    Ok(if interrupted { INTERRUPTED_EXIT } else { 0 })
}

fn write(report: &Report, output: &OutputArgs) -> Result<(), BenchError> {
    if let Some(path) = &output.plot {
        plot::write(report, path)?;
    }
    if let Some(path) = &output.hgrm {
        let several = report.histograms.0.len() > 1;
        for (name, histogram) in &report.histograms.0 {
            let path = if several { hgrm::path_for(path, name) } else { path.clone() };
            fs::write(&path, hgrm::write(histogram)).map_err(BenchError::file(&path))?;
        }
    }
    print(&match (output.json, output.csv) {
        (true, _) => format!("{}\n", json::value(report)),
        (_, true) => format!("{}{}", csv::HEAD, csv::lines(report)),
        _ => table::write(report),
    });
    Ok(())
}

/// Whoever reads may have gone (`| head`): that is no error.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
