//! A shard's rounds: what it does from the first thing after one turn to the end of the next one, by stages.
//!
//! A stage lasts until another one is entered, or the round is finished; after that, and until the next stage is
//! entered, the shard has nothing to do. What the executor does between two stages is counted for the first one.

use std::fmt;

use lepus_shards::histogram::Histogram;

use crate::server::limits::STALL_REPORT_PAUSE_US;

/// What a shard is busy with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::server) enum Stage {
    /// Reads a socket, takes its frames apart, and does what they say: publishes, acks, deliveries of what is
    /// published.
    Input,
    /// Clears up after a connection.
    Ended,
    /// Takes new connections, and the batches of other shards.
    Mesh,
    /// Answers of the topology's store, and input that waited for them.
    Control,
    /// What is due by the clock: expiry, remains of purges, heartbeats.
    Clock,
    /// The log: commits, confirms, messages that come back from the disk.
    Log,
    /// Queues at the end of a turn: paging out, deliveries that are due, confirms.
    Queues,
    /// Writes sockets.
    Output,
}

impl Stage {
    const ALL: [Stage; 8] = [
        Stage::Input,
        Stage::Ended,
        Stage::Mesh,
        Stage::Control,
        Stage::Clock,
        Stage::Log,
        Stage::Queues,
        Stage::Output,
    ];

    fn name(self) -> &'static str {
        match self {
            Stage::Input => "input",
            Stage::Ended => "ended connections",
            Stage::Mesh => "batches of other shards",
            Stage::Control => "topology and held-up input",
            Stage::Clock => "the clock's work",
            Stage::Log => "the log",
            Stage::Queues => "paging and deliveries",
            Stage::Output => "output",
        }
    }
}

/// One stay in a stage.
#[derive(Clone, Copy, Debug)]
struct Visit {
    stage: Stage,
    /// The connection that it was for, by its slot.
    slot: Option<u32>,
    us: u64,
}

/// A round that took too long, in one line.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Stall {
    round_us: u64,
    /// Where most of it went.
    stage: Stage,
    stage_us: u64,
    longest: Visit,
    /// Stalls of which nothing was said since the last one.
    unsaid: u64,
}

impl Stall {
    /// The connection that one visit was for, if that visit was a stall by itself.
    pub fn slot(&self) -> Option<u32> {
        self.longest.slot.filter(|_| self.longest.us * 2 > self.round_us)
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: u64| us as f64 / 1_000.0;
        let Stall { round_us, stage, stage_us, longest, unsaid } = *self;
        write!(f, "a turn took {:.1} ms, {:.1} ms of it with {}", ms(round_us), ms(stage_us), stage.name())?;
        if longest.us < stage_us {
            write!(f, "; the longest piece was {:.1} ms with {}", ms(longest.us), longest.stage.name())?;
        }
        if unsaid > 0 {
            write!(f, "; {unsaid} others in the meantime")?;
        }
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub(in crate::server) struct Rounds {
    /// Longer rounds are stalls.
    limit_us: u64,
    began_us: u64,
    /// When the stage was entered that the shard is in.
    since_us: u64,
    now_in: Option<(Stage, Option<u32>)>,
    /// Of this round.
    longest: Visit,
    by_stage_us: [u64; Stage::ALL.len()],
    /// Of all rounds before.
    totals_us: [u64; Stage::ALL.len()],
    pub lengths: Histogram,
    /// When the last stall was told, and how many came since.
    told_us: Option<u64>,
    unsaid: u64,
}

const NO_VISIT: Visit = Visit { stage: Stage::Input, slot: None, us: 0 };

impl Rounds {
    /// With this limit in milliseconds, or none (0).
    pub fn new(limit_ms: u64) -> Rounds {
        Rounds {
            limit_us: if limit_ms == 0 { u64::MAX } else { limit_ms * 1_000 },
            began_us: 0,
            since_us: 0,
            now_in: None,
            longest: NO_VISIT,
            by_stage_us: [0; Stage::ALL.len()],
            totals_us: [0; Stage::ALL.len()],
            lengths: Histogram::default(),
            told_us: None,
            unsaid: 0,
        }
    }

    /// From now on the shard is busy with this, for one connection if it says which.
    #[inline]
    pub fn enter(&mut self, stage: Stage, slot: Option<u32>, now_us: u64) {
        match self.now_in {
            None => self.began_us = now_us,
            Some(_) => self.leave(now_us),
        }
        self.now_in = Some((stage, slot));
        self.since_us = now_us;
    }

    /// The stage that was entered last has had nothing to do: its time, which was short, is this one's.
    #[inline]
    pub fn rename(&mut self, stage: Stage) {
        self.now_in = Some((stage, None));
    }

    /// When the round began.
    pub fn began_us(&self) -> u64 {
        self.began_us
    }

    /// The turn is over. Gives the stall that it was, if somebody should be told.
    #[inline]
    pub fn finish(&mut self, now_us: u64) -> Option<Stall> {
        self.leave(now_us);
        self.now_in = None;
        let round_us = now_us.saturating_sub(self.began_us);
        self.lengths.record(round_us);
        for (total, us) in self.totals_us.iter_mut().zip(&self.by_stage_us) {
            *total += us;
        }
        let stall = if round_us > self.limit_us { self.stalled(round_us, now_us) } else { None };
        self.by_stage_us = [0; Stage::ALL.len()];
        self.longest = NO_VISIT;
        stall
    }

    fn leave(&mut self, now_us: u64) {
        let Some((stage, slot)) = self.now_in else { return };
        let us = now_us.saturating_sub(self.since_us);
        self.by_stage_us[stage as usize] += us;
        if us > self.longest.us {
            self.longest = Visit { stage, slot, us };
        }
    }

    #[cold]
    fn stalled(&mut self, round_us: u64, now_us: u64) -> Option<Stall> {
        if self.told_us.is_some_and(|told_us| now_us < told_us + STALL_REPORT_PAUSE_US) {
            self.unsaid += 1;
            return None;
        }
        self.told_us = Some(now_us);
        let longest_stage = Stage::ALL.into_iter().max_by_key(|stage| self.by_stage_us[*stage as usize]);
        let stage = longest_stage.expect("there are stages");
        Some(Stall {
            round_us,
            stage,
            stage_us: self.by_stage_us[stage as usize],
            longest: self.longest,
            unsaid: std::mem::take(&mut self.unsaid),
        })
    }

    /// Which share of so much time went to which stage, and how much was left.
    pub fn shares(&self, of_us: u64) -> String {
        let percent = |us: u64| us as f64 * 100.0 / of_us.max(1) as f64;
        let mut parts: Vec<String> = Stage::ALL
            .into_iter()
            .map(|stage| (stage, self.totals_us[stage as usize]))
            .filter(|(_, us)| *us > 0)
            .map(|(stage, us)| format!("{} {:.1} %", stage.name(), percent(us)))
            .collect();
        let busy_us: u64 = self.totals_us.iter().sum();
        parts.push(format!("idle {:.1} %", percent(of_us.saturating_sub(busy_us))));
        parts.join(", ")
    }

    /// Begins to count anew.
    pub fn forget(&mut self) {
        self.totals_us = [0; Stage::ALL.len()];
        self.lengths.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of stages with their lengths, from this time on. Gives the stall, and when the round ended.
    fn round(rounds: &mut Rounds, from_us: u64, stages: &[(Stage, u64)]) -> (Option<Stall>, u64) {
        let mut now_us = from_us;
        for &(stage, us) in stages {
            rounds.enter(stage, None, now_us);
            now_us += us;
        }
        (rounds.finish(now_us), now_us)
    }

    #[test]
    fn a_turn_that_takes_too_long_is_told_with_the_stage_that_took_it() {
        let mut rounds = Rounds::new(5);
        let (stall, _) = round(&mut rounds, 100, &[(Stage::Input, 200), (Stage::Log, 4_800)]);
        assert!(stall.is_none(), "that was 5 ms and not more");
        let stages = [(Stage::Input, 200), (Stage::Queues, 7_000), (Stage::Output, 100)];
        let text = round(&mut rounds, 10_000, &stages).0.unwrap().to_string();
        assert_eq!(text, "a turn took 7.3 ms, 7.0 ms of it with paging and deliveries");
    }

    #[test]
    fn many_short_pieces_of_one_kind_are_added_up() {
        let mut rounds = Rounds::new(5);
        let (input, log) = ([(Stage::Input, 1_000); 6], [(Stage::Log, 1_500)]);
        let text = round(&mut rounds, 0, &[&input[..], &log].concat()).0.unwrap().to_string();
        assert_eq!(
            text,
            "a turn took 7.5 ms, 6.0 ms of it with input; the longest piece was 1.5 ms with the log"
        );
    }

    #[test]
    fn the_connection_is_named_that_took_most_of_the_time_alone() {
        let mut rounds = Rounds::new(5);
        let mut stalled = |first_us: u64, second_us: u64| {
            let from_us = rounds.told_us.map_or(0, |told_us| told_us + STALL_REPORT_PAUSE_US);
            rounds.enter(Stage::Input, Some(7), from_us);
            rounds.enter(Stage::Input, Some(8), from_us + first_us);
            rounds.enter(Stage::Mesh, None, from_us + first_us + second_us);
            rounds.finish(from_us + first_us + second_us + 10).unwrap().slot()
        };
        assert_eq!(stalled(100, 9_000), Some(8));
        assert_eq!(stalled(4_000, 4_001), None, "it was not alone");
    }

    #[test]
    fn time_between_rounds_is_nobodys() {
        let mut rounds = Rounds::new(5);
        let (_, end_us) = round(&mut rounds, 0, &[(Stage::Input, 1_000), (Stage::Output, 500)]);
        let (stall, end_us) = round(&mut rounds, end_us + 60_000, &[(Stage::Mesh, 500)]);
        assert!(stall.is_none());
        assert_eq!((rounds.lengths.count(), rounds.lengths.longest_us()), (2, 1_500));
        assert_eq!(end_us, 62_000);
        assert_eq!(
            rounds.shares(100_000),
            "input 1.0 %, batches of other shards 0.5 %, output 0.5 %, idle 98.0 %"
        );
        rounds.forget();
        assert_eq!(rounds.shares(1_000), "idle 100.0 %");
    }

    #[test]
    fn stalls_that_come_one_after_the_other_are_counted_and_told_once_in_a_while() {
        let mut rounds = Rounds::new(5);
        let mut now_us = 0;
        let mut told = Vec::new();
        while now_us <= STALL_REPORT_PAUSE_US + 10_000 {
            let (stall, end_us) = round(&mut rounds, now_us, &[(Stage::Clock, 10_000)]);
            told.extend(stall);
            now_us = end_us;
        }
        let unsaid: Vec<u64> = told.iter().map(|stall| stall.unsaid).collect();
        assert_eq!(unsaid, [0, STALL_REPORT_PAUSE_US / 10_000 - 1]);
        assert!(told[1].to_string().ends_with("; 99 others in the meantime"), "{}", told[1]);
    }

    #[test]
    fn without_a_limit_nothing_is_a_stall() {
        let mut rounds = Rounds::new(0);
        assert!(round(&mut rounds, 0, &[(Stage::Log, 3_600_000_000)]).0.is_none());
    }

    #[test]
    fn a_stage_that_had_nothing_to_do_leaves_its_moment_to_the_next() {
        let mut rounds = Rounds::new(5);
        rounds.enter(Stage::Mesh, None, 0);
        rounds.rename(Stage::Control);
        assert!(rounds.finish(6_000).unwrap().to_string().ends_with("with topology and held-up input"));
    }
}
