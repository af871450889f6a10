//! The moments at which messages and queues of a shard may end, earliest first.
//!
//! A deadline is looked at again when it comes: the message may be settled and the queue used by then.
//! Those of settled messages would pile up where the time to live is long and messages are quick, so they
//! are swept out whenever the deadlines have doubled: what is kept is at most twice what is live, and a
//! deadline costs a constant share of a sweep.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::QueueId;
use crate::ledger::Position;

/// Fewer deadlines than this are never swept.
const SWEEP_MIN: usize = 8192;

/// What may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    Message(QueueId, Position),
    Queue(QueueId),
    /// A dead letter that found no place is tried again.
    DeadLetter(u64),
}

/// 24 bytes: there can be millions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Deadline {
    at_ms: u64,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct What {
    /// A queue's id, or [`What::DEAD_LETTER`].
    subject: u64,
    /// A position, or [`What::QUEUE`]; or the number of a dead letter.
    place: u64,
}

const _: () = assert!(size_of::<Deadline>() == 24);

impl What {
    const DEAD_LETTER: u64 = u64::MAX;
    const QUEUE: u64 = u64::MAX;
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> Ordering {
        // Reversed: the standard heap gives its greatest. At the same time, a queue's messages go in
        // their order.
        (other.at_ms, other.what).cmp(&(self.at_ms, self.what))
    }
}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// All deadlines of a shard.
pub(super) struct Deadlines {
    heap: BinaryHeap<Deadline>,
    sweep_at: usize,
}

impl Deadlines {
    pub fn new() -> Deadlines {
        Deadlines { heap: BinaryHeap::new(), sweep_at: SWEEP_MIN }
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        (self.heap.capacity() * size_of::<Deadline>()) as u64
    }

    pub fn push(&mut self, at_ms: u64, due: Due) {
        let what = match due {
            Due::Message(queue, position) => What { subject: queue.to_bits(), place: position.0 },
            Due::Queue(queue) => What { subject: queue.to_bits(), place: What::QUEUE },
            Due::DeadLetter(number) => What { subject: What::DEAD_LETTER, place: number },
        };
        self.heap.push(Deadline { at_ms, what });
    }

    /// There are so many that they should be swept.
    pub fn wants_sweep(&self) -> bool {
        self.heap.len() >= self.sweep_at
    }

    /// Drops the deadlines of messages that are not `live` any more.
    pub fn sweep(&mut self, live: impl Fn(QueueId, Position) -> bool) {
        self.heap.retain(|deadline| match deadline.due() {
            Due::Message(queue, position) => live(queue, position),
            Due::Queue(_) | Due::DeadLetter(_) => true,
        });
        self.sweep_at = (self.heap.len() * 2).max(SWEEP_MIN);
        self.heap.shrink_to(self.sweep_at);
    }

    /// When the earliest comes.
    pub fn first_ms(&self) -> Option<u64> {
        self.heap.peek().map(|deadline| deadline.at_ms)
    }

    /// The earliest deadline, if it has come.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<Due> {
        if self.heap.peek()?.at_ms > now_ms {
            return None;
        }
        self.heap.pop().map(|deadline| deadline.due())
    }
}

impl Deadline {
    fn due(&self) -> Due {
        let What { subject, place } = self.what;
        match (subject, place) {
            (What::DEAD_LETTER, number) => Due::DeadLetter(number),
            (queue, What::QUEUE) => Due::Queue(QueueId::from_bits(queue)),
            (queue, position) => Due::Message(QueueId::from_bits(queue), Position(position)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    fn queue() -> QueueId {
        QueueId::new(ShardId(1023), 5, 1)
    }

    #[test]
    fn deadlines_come_in_time_and_at_one_time_in_the_queues_order() {
        let mut deadlines = Deadlines::new();
        let message = |position| Due::Message(queue(), Position(position));
        for (at_ms, due) in
            [(20, message(0)), (10, message(3)), (10, message(1)), (10, Due::DeadLetter(9)), (10, message(2))]
        {
            deadlines.push(at_ms, due);
        }
        deadlines.push(10, Due::Queue(queue()));
        assert_eq!(deadlines.pop_due(9), None);
        let due: Vec<Due> = std::iter::from_fn(|| deadlines.pop_due(10)).collect();
        assert_eq!(due, [message(1), message(2), message(3), Due::Queue(queue()), Due::DeadLetter(9)]);
        assert_eq!(deadlines.pop_due(20), Some(message(0)));
    }

    #[test]
    fn what_is_not_live_does_not_pile_up() {
        let mut deadlines = Deadlines::new();
        for position in 0..1_000_000 {
            deadlines.push(u64::MAX, Due::Message(queue(), Position(position)));
            if deadlines.wants_sweep() {
                deadlines.sweep(|_, live| live.0 + 100 > position);
            }
        }
        assert!(deadlines.heap.len() <= SWEEP_MIN && deadlines.bytes() <= 24 * 2 * SWEEP_MIN as u64);
    }
}
