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
use crate::process::{Memory, Meter, Process};
use crate::stop::Stop;
use crate::threads::join;

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
    /// Publishers end as well when nothing has moved for so long: for runs that are bound by their messages, and
    /// not by a time.
    pub stalled_after: Option<Duration>,
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

/// Runs. Connections are closed before this returns.
///
/// # Errors
/// When a connection fails.
pub fn run(load: Load, plan: &RunPlan<'_>) -> Result<Outcome, BenchError> {
    let Load { clock, counters, groups, publishers } = load;
    let state = State::new(clock);
    let meter = Meter::start(plan.process)?;
    let start = clock.now();
    thread::scope(|scope| {
        let state = &state;
        let workers: Vec<_> = groups
            .into_iter()
            .filter(|members| !members.is_empty())
            .map(|members| scope.spawn(move || group::run(members, state)))
            .collect();
        let failed = || workers.iter().any(thread::ScopedJoinHandle::is_finished);
        let mut watch = Watch::new(clock, &counters, plan, publishers);
        let window = watch.until(Some(start.after(plan.duration)), plan.stalled_after, &failed);
        let window_end = clock.now();
        state.enter(Phase::Draining);
        let totals = watch.until(None, Some(plan.patience), &failed);
        let end = clock.now();
        // Before the connections are closed, which costs the broker as well.
        let cpu = meter.used();
        let broker_memory = watch.memory();
        state.enter(Phase::Ended);
        watch.line.clear();

        let mut histograms = Histograms::default();
        for worker in workers {
            for (link, mut role) in join(worker)?.into_iter().map(Member::into_parts) {
                histograms.merge(role.histograms());
                link.close();
            }
        }
        let cpu = cpu?;
        Ok(Outcome {
            window,
            window_s: window_end.since(start) as f64 / 1e9,
            totals,
            total_s: end.since(start) as f64 / 1e9,
            missing: plan.expected.deliveries(&totals).saturating_sub(totals.delivered),
            samples: watch.sampler.into_samples(),
            histograms,
            broker_cpu_s: cpu.broker_s,
            broker_memory: broker_memory?,
            own_cpu_s: cpu.own_s,
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
    next_sample: Nanos,
    line: ProgressLine,
    peak: u64,
}

impl<'a> Watch<'a> {
    fn new(clock: Clock, counters: &'a Counters, plan: &'a RunPlan<'a>, publishers: u64) -> Watch<'a> {
        let start = clock.now();
        Watch {
            clock,
            counters,
            plan,
            publishers,
            sampler: Sampler::new(start),
            next_sample: start.after(SAMPLE_EVERY),
            line: ProgressLine::new(plan.label, plan.quiet),
            peak: 0,
        }
    }

    /// Until publishers have sent what they should and all of it has come; or until the end, a signal, a failure, or
    /// nothing has moved for as long as patience lasts.
    fn until(&mut self, end: Option<Nanos>, patience: Option<Duration>, failed: &dyn Fn() -> bool) -> Totals {
        let (mut last, mut changed) = (self.counters.totals(), self.clock.now());
        loop {
            let (now, totals) = (self.clock.now(), self.counters.totals());
            self.sample(now, totals);
            if totals != last {
                (last, changed) = (totals, now);
            }
            let done = totals.finished >= self.publishers && self.plan.expected.is_met(&totals);
            let stalled = patience.is_some_and(|patience| now >= changed.after(patience));
            let over = end.is_some_and(|end| now >= end);
            if done || stalled || over || self.plan.stop.is_set() || failed() {
                return totals;
            }
            let left = end.map_or(LOOK_EVERY, |end| Duration::from_nanos(end.since(now)));
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn sample(&mut self, now: Nanos, totals: Totals) {
        if now < self.next_sample {
            return;
        }
        self.next_sample = now.after(SAMPLE_EVERY);
        if let Some(sample) = self.sampler.look(now, totals) {
            self.line.show_sample(&sample);
        }
        // A process that is gone is noticed at the end.
        if let Some(Ok(resident)) = self.plan.process.map(Process::resident_bytes) {
            self.peak = self.peak.max(resident);
        }
    }

    fn memory(&self) -> Result<Option<Memory>, BenchError> {
        let resident = self.plan.process.map(Process::resident_bytes).transpose()?;
        Ok(resident.map(|resident| Memory { resident, peak: resident.max(self.peak) }))
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
