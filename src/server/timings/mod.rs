//! Where a shard's time goes, and how long what is in its hands has to wait.
//!
//! | module | what it owns |
//! |---|---|
//! | `rounds` | the stages of a turn, and turns that take too long |
//! | `commits` | from an append to its commit |
//!
//! Counted by the shard's thread for itself, in plain memory. The clock is read by whoever calls, a few times in a turn
//! and never for a message. Told to the log when somebody asks (SIGUSR1) and when the shard ends; each time the counts
//! begin anew, so that two signals frame what is to be looked at.

mod commits;
mod rounds;

use lepus_shards::ShardId;
use lepus_shards::histogram::Histogram;
use lepus_shards::shard::WaitTimes;
use tracing::{debug, info};

use commits::Commits;
use rounds::Rounds;
pub(super) use rounds::Stage;

/// One shard's. See the module.
#[derive(Debug)]
pub(super) struct Timings {
    pub rounds: Rounds,
    pub commits: Commits,
    /// How late the clock's tick comes: as long waits whatever else has become ready meanwhile.
    pub lag: Histogram,
    /// From a batch's handing in on another shard to the turn that takes it here.
    pub mesh: Histogram,
    since_us: u64,
}

/// How loudly to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loudness {
    /// Somebody has asked.
    Asked,
    /// For those who debug.
    Unasked,
}

impl Timings {
    /// Turns that take longer than this many milliseconds are stalls; with 0, none is.
    pub fn new(stall_report_ms: u64) -> Timings {
        Timings {
            rounds: Rounds::new(stall_report_ms),
            commits: Commits::default(),
            lag: Histogram::default(),
            mesh: Histogram::default(),
            since_us: 0,
        }
    }

    /// Tells everything that was seen since the last time, and forgets it.
    pub fn tell(&mut self, shard: ShardId, waits: &WaitTimes, loudness: Loudness, now_us: u64) {
        let rows = [
            ("turns", &self.rounds.lengths),
            ("loop lag", &self.lag),
            ("time in queue", &waits.delivered),
            ("commits", &self.commits.times),
            ("mesh", &self.mesh),
        ];
        for (what, times) in rows {
            tell_row(shard, what, times, loudness);
        }
        let over_s = (now_us - self.since_us) as f64 / 1e6;
        let (stages, unseen) = (self.rounds.shares(now_us - self.since_us), waits.unseen);
        match loudness {
            Loudness::Asked => info!(shard = shard.0, over_s, unseen, "time by stage: {stages}"),
            Loudness::Unasked => debug!(shard = shard.0, over_s, unseen, "time by stage: {stages}"),
        }
        self.rounds.forget();
        self.commits.times.clear();
        self.lag.clear();
        self.mesh.clear();
        self.since_us = now_us;
    }
}

fn tell_row(shard: ShardId, what: &str, times: &Histogram, loudness: Loudness) {
    let [p50_us, p90_us, p99_us, p999_us] = [0.5, 0.9, 0.99, 0.999].map(|share| times.quantile_us(share));
    let (count, longest_us) = (times.count(), times.longest_us());
    macro_rules! row {
        ($level:ident) => {
            $level!(shard = shard.0, what, count, p50_us, p90_us, p99_us, p999_us, longest_us, "timing")
        };
    }
    match loudness {
        Loudness::Asked => row!(info),
        Loudness::Unasked => row!(debug),
    }
}
