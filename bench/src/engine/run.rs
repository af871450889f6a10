//! A run from its first message to its last: starts the groups, watches the counters, ends the publishers, waits
//! until everything that was sent has come, and charges the broker's process for it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::Phase;
use super::counters::{Counters, Totals};
use super::group::{self, Member, State};
use super::histograms::Histograms;
use super::progress::{ProgressLine, Sample, Sampler};
use crate::clock::{Clock, Nanos};
use crate::error::BenchError;
use crate::limits::SAMPLE_EVERY;
use crate::process::{Memory, Process};
use crate::stop::Stop;

/// How often the counters are looked at while the end is near.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A run that is about to start.
pub struct Load {
    /// Its clock; it may have been started some time ago, by who fixed the times of messages.
    pub clock: Clock,
    /// What all count.
    pub counters: Arc<Counters>,
    /// Connections by thread.
    pub groups: Vec<Vec<Member>>,
    /// How many of them publish.
    pub publishers: u64,
}

/// When it ends, and what it is charged to.
#[derive(Clone, Debug)]
pub struct RunPlan<'a> {
    /// Publishers end after this time, if they have not ended by themselves.
    pub duration: Duration,
    /// What has to come after so many messages were taken.
    pub expected: Expected,
    /// Waiting for it ends when nothing has come for so long.
    pub patience: Duration,
    /// The broker's process.
    pub process: Option<Process>,
    /// The wish to end early.
    pub stop: &'a Stop,
    /// Stands before the rates on a terminal.
    pub label: &'a str,
    /// No rates on a terminal.
    pub quiet: bool,
}

/// What has to come before a run is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Deliveries of each message that the broker takes.
    pub copies: u64,
    /// Messages that were there before.
    pub before: u64,
    /// Whether deliveries are acked.
    pub acks: bool,
}

/// What a run gave.
#[derive(Debug)]
pub struct Outcome {
    /// Counts when the publishers were told to end.
    pub window: Totals,
    /// How long that took.
    pub window_s: f64,
    /// Counts when all was over.
    pub totals: Totals,
    /// How long that took.
    pub total_s: f64,
    /// Deliveries that were due and did not come.
    pub missing: u64,
    /// Rates over time.
    pub samples: Vec<Sample>,
    /// Latencies.
    pub histograms: Histograms,
    /// CPU seconds of the broker from the first message to the last.
    pub broker_cpu_s: Option<f64>,
    /// Memory of the broker at the end.
    pub broker_memory: Option<Memory>,
    /// CPU seconds of this process.
    pub own_cpu_s: f64,
    /// Whether a signal ended it.
    pub interrupted: bool,
}

impl Expected {
    fn deliveries(&self, totals: &Totals) -> u64 {
        // A message that came back or was refused is in no queue.
        let taken = totals.sent.saturating_sub(totals.nacked + totals.returned);
        taken * self.copies + self.before
    }

    fn is_met(&self, totals: &Totals) -> bool {
        let acked = !self.acks || totals.acked >= totals.delivered;
        totals.delivered >= self.deliveries(totals) && acked
    }
}

/// CPU seconds of this process, all threads.
pub fn own_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs. Connections are closed before this returns.
///
/// # Errors
/// When a connection fails.
pub fn run(load: Load, plan: &RunPlan<'_>) -> Result<Outcome, BenchError> {
    let Load { clock, counters, groups, publishers } = load;
    let state = State::new(clock);
    let broker_cpu = plan.process.map(Process::cpu_seconds).transpose()?;
    let own_cpu = own_cpu_seconds();
    let start = clock.now();
    thread::scope(|scope| {
        let state = &state;
        let workers: Vec<_> = groups
            .into_iter()
            .filter(|members| !members.is_empty())
            .map(|members| scope.spawn(move || group::run(members, state)))
            .collect();
        let failed = || workers.iter().any(thread::ScopedJoinHandle::is_finished);
        let mut watch = Watch { clock, counters: &counters, plan, publishers, sampler: Sampler::new(start) };

        let mut line = ProgressLine::new(plan.label, plan.quiet);
        watch.while_running(start, &mut line, &failed);
        let (window_end, window) = (clock.now(), counters.totals());
        state.enter(Phase::Draining);
        watch.while_draining(&mut line, &failed);
        let (end, totals) = (clock.now(), counters.totals());
        // Before the connections are closed, which costs the broker as well.
        let broker_cpu_now = plan.process.map(Process::cpu_seconds).transpose();
        let broker_memory = plan.process.map(Process::memory).transpose();
        let own_cpu_s = own_cpu_seconds() - own_cpu;
        state.enter(Phase::Ended);
        drop(line);

        let mut histograms = Histograms::default();
        for worker in workers {
            let members = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            for (link, mut role) in members.into_iter().map(Member::into_parts) {
                histograms.merge(role.histograms());
                link.close();
            }
        }
        Ok(Outcome {
            window,
            window_s: window_end.since(start) as f64 / 1e9,
            totals,
            total_s: end.since(start) as f64 / 1e9,
            missing: plan.expected.deliveries(&totals).saturating_sub(totals.delivered),
            samples: watch.sampler.into_samples(),
            histograms,
            broker_cpu_s: broker_cpu_now?.zip(broker_cpu).map(|(now, before)| now - before),
            broker_memory: broker_memory?,
            own_cpu_s,
            interrupted: plan.stop.is_set(),
        })
    })
}

struct Watch<'a> {
    clock: Clock,
    counters: &'a Counters,
    plan: &'a RunPlan<'a>,
    publishers: u64,
    sampler: Sampler,
}

impl Watch<'_> {
    fn finished(&self, totals: &Totals) -> bool {
        totals.finished >= self.publishers
    }

    /// Until time is up, or the publishers have sent all that they should (a run without publishers waits for
    /// what was there before).
    fn while_running(&mut self, start: Nanos, line: &mut ProgressLine, failed: &dyn Fn() -> bool) {
        let end = start.after(self.plan.duration);
        let mut next_sample = start.after(SAMPLE_EVERY);
        loop {
            let (now, totals) = (self.clock.now(), self.counters.totals());
            if now >= next_sample {
                if let Some(sample) = self.sampler.look(now, totals) {
                    line.show_sample(&sample);
                }
                next_sample = now.after(SAMPLE_EVERY);
            }
            let over = self.finished(&totals) && self.plan.expected.is_met(&totals);
            if now >= end || self.plan.stop.is_set() || failed() || over {
                return;
            }
            let left = Duration::from_nanos(end.since(now));
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    /// Until everything has come, or nothing comes any more.
    fn while_draining(&mut self, line: &mut ProgressLine, failed: &dyn Fn() -> bool) {
        let mut last = self.counters.totals();
        let mut changed = self.clock.now();
        let mut next_sample = changed.after(SAMPLE_EVERY);
        loop {
            let (now, totals) = (self.clock.now(), self.counters.totals());
            if self.finished(&totals) && self.plan.expected.is_met(&totals)
                || failed()
                || self.plan.stop.is_set()
            {
                return;
            }
            if now >= next_sample {
                if let Some(sample) = self.sampler.look(now, totals) {
                    line.show_sample(&sample);
                }
                next_sample = now.after(SAMPLE_EVERY);
            }
            if totals != last {
                (last, changed) = (totals, now);
            } else if now >= changed.after(self.plan.patience) {
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_when_every_copy_of_what_was_taken_is_here_and_acked() {
        let expected = Expected { copies: 3, before: 5, acks: true };
        let totals =
            Totals { sent: 10, nacked: 1, returned: 1, delivered: 29, acked: 29, ..Totals::default() };
        assert_eq!(expected.deliveries(&totals), 29);
        assert!(expected.is_met(&totals));
        assert!(!expected.is_met(&Totals { acked: 28, ..totals }));
        assert!(!expected.is_met(&Totals { delivered: 28, ..totals }));
    }
}
