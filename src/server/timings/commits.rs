//! How long messages wait for their commit: from the turn in which they were appended to the one that sees that the log
//! has them. That is what a confirm waits for.
//!
//! Each turn that has appended something leaves one mark, so that it costs nothing for each message.

use std::collections::VecDeque;

use lepus_shards::histogram::Histogram;
use lepus_shards::shard::LogSequence;

use crate::server::limits::COMMIT_MARKS_MAX;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::server) struct Commits {
    /// The last message of a turn, and when the turn was.
    marks: VecDeque<(LogSequence, u64)>,
    marked: LogSequence,
    pub times: Histogram,
}

impl Commits {
    /// Everything up to this message is appended.
    pub fn appended(&mut self, sequence: LogSequence, now_us: u64) {
        // While a disk stands still turns go on: those without a mark share the next one's fate.
        if sequence > self.marked && self.marks.len() < COMMIT_MARKS_MAX {
            self.marked = sequence;
            self.marks.push_back((sequence, now_us));
        }
    }

    /// Everything up to this message is committed.
    pub fn committed(&mut self, frontier: LogSequence, now_us: u64) {
        while let Some(&(sequence, since_us)) = self.marks.front()
            && sequence <= frontier
        {
            self.times.record(now_us.saturating_sub(since_us));
            self.marks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_timed_until_all_that_it_appended_is_committed() {
        let mut commits = Commits::default();
        commits.appended(10, 1_000);
        commits.appended(10, 1_050);
        commits.appended(25, 1_100);
        commits.committed(9, 1_150);
        assert_eq!(commits.times.count(), 0);
        commits.committed(24, 1_200);
        assert_eq!((commits.times.count(), commits.times.longest_us()), (1, 200));
        commits.committed(25, 1_900);
        assert_eq!((commits.times.count(), commits.times.longest_us()), (2, 800));
    }

    #[test]
    fn a_disk_that_stands_still_does_not_fill_memory() {
        let mut commits = Commits::default();
        let turns = 10 * COMMIT_MARKS_MAX as u64;
        (1..=turns).for_each(|turn| commits.appended(turn, turn));
        assert_eq!(commits.marks.len(), COMMIT_MARKS_MAX);
        commits.committed(turns, turns + 5);
        assert_eq!((commits.times.count(), commits.times.longest_us()), (COMMIT_MARKS_MAX as u64, turns + 4));
        commits.appended(turns + 1, turns + 6);
        commits.committed(turns + 1, turns + 7);
        assert_eq!(commits.times.count(), COMMIT_MARKS_MAX as u64 + 1);
    }
}
