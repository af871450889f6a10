//! How long messages wait in their queues, by samples.
//!
//! One message in [`WAIT_SAMPLE_EVERY`] is followed, and no other until it is delivered: for the rest the price is a count and a
//! comparison. What is delivered as it comes has waited no time at all. One that is not delivered for [`WAIT_PATIENCE_US`]
//! (its queue has no consumer, or it has expired, or was purged) is let go, and counts as one that was not seen to
//! the end. The time is the shard's: that of the turn, or of the read, in which something happens.

use crate::QueueId;
use crate::histogram::Histogram;
use crate::ledger::Position;
use crate::limits::{WAIT_PATIENCE_US, WAIT_SAMPLE_EVERY};

/// The sampler of a shard. See the module.
#[derive(Debug)]
pub(super) struct Waits {
    now_us: u64,
    /// Messages until the next one is followed.
    countdown: u32,
    followed: Option<Followed>,
    times: WaitTimes,
}

/// How long messages that were followed have waited.
#[derive(Clone, Debug, Default)]
pub struct WaitTimes {
    /// Those that were delivered.
    pub delivered: Histogram,
    /// How many were followed in vain.
    pub unseen: u64,
}

#[derive(Clone, Copy, Debug)]
struct Followed {
    queue: QueueId,
    position: Position,
    since_us: u64,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits { now_us: 0, countdown: WAIT_SAMPLE_EVERY, followed: None, times: WaitTimes::default() }
    }
}

impl Waits {
    pub fn set_time(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// A message has come, and is delivered already.
    #[inline]
    pub fn passed_through(&mut self) {
        if self.is_due() {
            self.times.delivered.record(0);
        }
    }

    /// A message has come, and waits.
    #[inline]
    pub fn entered(&mut self, queue: QueueId, position: Position) {
        if self.is_due() {
            self.followed = Some(Followed { queue, position, since_us: self.now_us });
        }
    }

    /// A message is delivered that has waited.
    #[inline]
    pub fn left(&mut self, queue: QueueId, position: Position) {
        if let Some(followed) = self.followed
            && followed.position == position
            && followed.queue == queue
        {
            self.times.delivered.record(self.now_us.saturating_sub(followed.since_us));
            self.followed = None;
        }
    }

    /// What was seen since this was last called.
    pub fn take(&mut self) -> WaitTimes {
        std::mem::take(&mut self.times)
    }

    /// To be called now and then.
    pub fn tick(&mut self) {
        if self.followed.is_some_and(|followed| self.now_us >= followed.since_us + WAIT_PATIENCE_US) {
            self.followed = None;
            self.times.unseen += 1;
        }
    }

    #[inline]
    fn is_due(&mut self) -> bool {
        self.countdown = self.countdown.saturating_sub(1);
        let due = self.countdown == 0 && self.followed.is_none();
        if due {
            self.countdown = WAIT_SAMPLE_EVERY;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    fn queue(number: u32) -> QueueId {
        QueueId::new(ShardId(0), number, 1)
    }

    /// So that the next message is followed.
    fn due() -> Waits {
        Waits { countdown: 1, ..Waits::default() }
    }

    #[test]
    fn a_message_that_is_followed_is_timed_from_its_coming_to_its_delivery() {
        let mut waits = due();
        waits.set_time(1_000);
        waits.entered(queue(1), Position(5));
        waits.set_time(1_250);
        waits.left(queue(1), Position(4));
        waits.left(queue(2), Position(5));
        assert_eq!(waits.times.delivered.count(), 0, "those were others");
        waits.left(queue(1), Position(5));
        waits.left(queue(1), Position(5));
        assert_eq!((waits.times.delivered.count(), waits.times.delivered.longest_us()), (1, 250));
    }

    #[test]
    fn one_in_many_is_followed_and_only_one_at_a_time() {
        let mut waits = Waits::default();
        let every = u64::from(WAIT_SAMPLE_EVERY);
        (0..3 * every).for_each(|_| waits.passed_through());
        assert_eq!((waits.times.delivered.count(), waits.times.delivered.longest_us()), (3, 0));
        (0..3 * every).for_each(|position| waits.entered(queue(1), Position(position)));
        assert_eq!(waits.followed.map(|followed| followed.position), Some(Position(every - 1)));
        waits.left(queue(1), Position(every - 1));
        waits.entered(queue(1), Position(3 * every));
        assert!(waits.followed.is_some(), "the next one was due for long");
    }

    #[test]
    fn a_message_that_nobody_wants_does_not_keep_others_from_being_followed() {
        let mut waits = due();
        waits.entered(queue(1), Position(0));
        waits.set_time(WAIT_PATIENCE_US - 1);
        waits.tick();
        assert_eq!(waits.times.unseen, 0);
        waits.set_time(WAIT_PATIENCE_US);
        waits.tick();
        assert_eq!((waits.times.unseen, waits.times.delivered.count()), (1, 0));
        waits.left(queue(1), Position(0));
        assert_eq!(waits.times.delivered.count(), 0);
    }
}
