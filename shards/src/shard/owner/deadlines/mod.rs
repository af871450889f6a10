//! The moments at which messages and queues of a shard may end, earliest first.
//!
//! A deadline is looked at again when it comes: the message may be settled and the queue used by then.
//! Those of settled messages would pile up where the time to live is long and messages are quick, so they
//! are swept out whenever the deadlines have doubled. A sweep is done bit by bit, [`LOOKS_PER_PUSH`] for each
//! deadline that is added meanwhile: looking at a million in one turn takes 50 ms, in which nothing else is
//! delivered. What is kept is at most some three times what is live.

mod heap;

use self::heap::Heap;
use crate::QueueId;
use crate::ledger::Position;

/// Fewer deadlines than this are never swept.
const SWEEP_MIN: usize = 8192;
/// Deadlines that a sweep looks at for each that is added: it ends before the deadlines have grown by half.
const LOOKS_PER_PUSH: usize = 4;

/// What may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    Message(QueueId, Position),
    Queue(QueueId),
    /// A dead letter that found no place is tried again.
    DeadLetter(u64),
}

/// 24 bytes: there can be millions. At the same time, a queue's messages go in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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

/// All deadlines of a shard.
pub(super) struct Deadlines {
    heap: Heap<Deadline>,
    /// At so many, a sweep begins.
    sweep_at: usize,
    sweep: Option<Sweep>,
}

/// A sweep that is under way.
struct Sweep {
    /// Places before this one it has not looked at.
    end: usize,
    /// How many it may look at now.
    looks: usize,
}

impl Deadlines {
    pub fn new() -> Deadlines {
        Deadlines { heap: Heap::new(), sweep_at: SWEEP_MIN, sweep: None }
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.heap.bytes() as u64
    }

    pub fn push(&mut self, at_ms: u64, due: Due) {
        let what = match due {
            Due::Message(queue, position) => What { subject: queue.to_bits(), place: position.0 },
            Due::Queue(queue) => What { subject: queue.to_bits(), place: What::QUEUE },
            Due::DeadLetter(number) => What { subject: What::DEAD_LETTER, place: number },
        };
        self.heap.push(Deadline { at_ms, what });
        match &mut self.sweep {
            Some(sweep) => sweep.looks += LOOKS_PER_PUSH,
            None if self.heap.len() < self.sweep_at => {}
            None => self.sweep = Some(Sweep { end: self.heap.len(), looks: 0 }),
        }
    }

    /// Drops deadlines of messages that are not `live` any more: a part of all, in proportion to what was
    /// added since the last call.
    pub fn sweep_some(&mut self, live: impl Fn(QueueId, Position) -> bool) {
        let Some(sweep) = &mut self.sweep else { return };
        // From the last place to the first: the last deadline takes the place of one that is dropped, and that
        // one has been looked at.
        sweep.end = sweep.end.min(self.heap.len());
        while sweep.looks > 0 && sweep.end > 0 {
            sweep.looks -= 1;
            let place = sweep.end - 1;
            let keep = match self.heap.at(place).due() {
                Due::Message(queue, position) => live(queue, position),
                Due::Queue(_) | Due::DeadLetter(_) => true,
            };
            match keep {
                true => sweep.end = place,
                false => {
                    // One that the sweep has not come to may be at this place now.
                    self.heap.remove(place);
                    sweep.end = sweep.end.min(self.heap.len());
                }
            }
        }
        if sweep.end == 0 {
            self.sweep = None;
            self.sweep_at = (self.heap.len() * 2).max(SWEEP_MIN);
        }
    }

    /// When the earliest comes.
    pub fn first_ms(&self) -> Option<u64> {
        self.heap.first().map(|deadline| deadline.at_ms)
    }

    /// The earliest deadline, if it has come.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<Due> {
        if self.heap.first()?.at_ms > now_ms {
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
    use proptest::prelude::*;

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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// A queue of `backlog` messages at a time, whose deadlines rise, fall, or neither, in turns of
        /// `per_turn` messages: no turn looks at more than it pays for, none that lives is lost, and what does
        /// not live does not pile up.
        #[test]
        fn a_sweep_is_done_bit_by_bit_and_keeps_up(backlog in 1..20_000u64, per_turn in 1..5_000u64, order in 0..3u8) {
            const MESSAGES: u64 = 300_000;
            let mut deadlines = Deadlines::new();
            let mut pushed = 0;
            while pushed < MESSAGES {
                for position in pushed..pushed + per_turn {
                    let at_ms = match order {
                        0 => position,
                        1 => MESSAGES * 2 - position,
                        _ => position.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                    };
                    deadlines.push(at_ms, Due::Message(queue(), Position(position)));
                }
                pushed += per_turn;
                let looks = std::cell::Cell::new(0);
                deadlines.sweep_some(|_, position| {
                    looks.set(looks.get() + 1);
                    position.0 + backlog >= pushed
                });
                prop_assert!(looks.get() <= per_turn * LOOKS_PER_PUSH as u64);
                let most = (3 * backlog).max(SWEEP_MIN as u64 * 3 / 2) + 2 * per_turn;
                prop_assert!(deadlines.heap.len() as u64 <= most, "{} of {most}", deadlines.heap.len());
            }
            let all: std::collections::HashSet<u64> = std::iter::from_fn(|| deadlines.pop_due(u64::MAX))
                .map(|due| match due {
                    Due::Message(_, position) => position.0,
                    other => panic!("{other:?} was never added"),
                })
                .collect();
            prop_assert!((pushed.saturating_sub(backlog)..pushed).all(|position| all.contains(&position)));
        }
    }
}
