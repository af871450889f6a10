//! A queue's ledger: one of [`Entries`], or one for each priority.
//!
//! Runs on the queue's owner. With priorities, a position names the level in its upper byte and the
//! place there below it, so that whoever holds a position need not know that there are levels. The first
//! ready message is the first one of the highest level that has any; each level keeps publication order.
//!
//! A queue without priorities pays one branch that is always taken the same way.

#![forbid(unsafe_code)]

use super::{Claim, Cursor, Entries, Holder, Kept, Position, Returns, Settled, StaleClaim};
use crate::shard::{LogSequence, Verdict};

/// Bits of a position that count within its level: enough for a million messages a second for two
/// thousand years.
const LEVEL_SHIFT: u32 = 56;

/// Either kind of ledger.
pub enum Ledger {
    /// Publication order.
    Plain(Entries),
    /// Higher levels first.
    Levels(Box<Levels>),
}

/// A ledger for each priority.
pub struct Levels {
    epoch: u32,
    /// Moves with each change of what is next.
    version: u64,
    /// By priority.
    levels: Vec<Entries>,
    /// The levels that may have ready messages, a bit each.
    ready_levels: [u64; 4],
    ready: u64,
    unacked: u64,
}

fn level_of(position: Position) -> usize {
    (position.0 >> LEVEL_SHIFT) as usize
}

fn within(position: Position) -> Position {
    Position(position.0 & ((1 << LEVEL_SHIFT) - 1))
}

fn outward(level: usize, position: Position) -> Position {
    Position(position.0 | (level as u64) << LEVEL_SHIFT)
}

impl Levels {
    fn new(epoch: u32, max_priority: u8) -> Levels {
        let levels = (0..=max_priority).map(|_| Entries::new(epoch)).collect();
        Levels { epoch, version: 0, levels, ready_levels: [0; 4], ready: 0, unacked: 0 }
    }

    /// The level of a priority: what is above the queue's highest counts as that.
    fn level(&self, priority: u8) -> usize {
        usize::from(priority).min(self.levels.len() - 1)
    }

    fn mark_ready(&mut self, level: usize) {
        self.ready_levels[level / 64] |= 1 << (level % 64);
    }

    /// The highest level with a ready message.
    fn highest(&mut self) -> Option<usize> {
        for word in (0..4).rev() {
            while self.ready_levels[word] != 0 {
                let bit = 63 - self.ready_levels[word].leading_zeros() as usize;
                let level = word * 64 + bit;
                if self.levels[level].ready() > 0 {
                    return Some(level);
                }
                self.ready_levels[word] &= !(1 << bit);
            }
        }
        None
    }

    fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, version: self.version }
    }

    /// Enters a message behind all others of its priority; it has come back this often.
    pub fn push(&mut self, message: u32, priority: u8, returns: Returns) -> Position {
        let level = self.level(priority);
        self.ready += 1;
        self.version += 1;
        self.mark_ready(level);
        outward(level, self.levels[level].restore(message, returns))
    }

    fn claim(&mut self, expected: Cursor, holder: Holder) -> Result<Option<Claim>, StaleClaim> {
        let current = self.cursor();
        if expected != current {
            return Err(StaleClaim { current });
        }
        let Some(level) = self.highest() else { return Ok(None) };
        let entries = &mut self.levels[level];
        let claim = entries.claim(entries.cursor(), holder).expect("the cursor was just read");
        let claim = claim.expect("the level has a ready message");
        self.ready -= 1;
        self.unacked += 1;
        self.version += 1;
        Ok(Some(Claim { position: outward(level, claim.position), ..claim }))
    }

    fn settle(&mut self, position: Position, verdict: Verdict) -> Option<Settled> {
        let level = level_of(position);
        let settled = self.levels.get_mut(level)?.settle(within(position), verdict)?;
        self.unacked -= 1;
        if settled.released.is_none() {
            self.ready += 1;
            self.version += 1;
            self.mark_ready(level);
        }
        Some(settled)
    }

    fn expire(&mut self, position: Position) -> Option<Kept> {
        let message = self.levels.get_mut(level_of(position))?.expire(within(position))?;
        self.ready -= 1;
        self.version += 1;
        Some(message)
    }

    fn drop_ready(&mut self, most: u64, mut released: impl FnMut(Kept)) -> u64 {
        let mut count = 0;
        while count < most
            && let Some(level) = self.highest()
        {
            count += self.levels[level].drop_ready(most - count, &mut released);
        }
        self.ready -= count;
        self.version += 1;
        count
    }
}

impl Ledger {
    /// An empty ledger of an owner with this epoch; with priorities if there is a highest one.
    pub fn new(epoch: u32, max_priority: Option<u8>) -> Ledger {
        match max_priority {
            None => Ledger::Plain(Entries::new(epoch)),
            Some(highest) => Ledger::Levels(Box::new(Levels::new(epoch, highest))),
        }
    }

    /// Messages have priorities.
    #[inline]
    pub fn has_levels(&self) -> bool {
        matches!(self, Ledger::Levels(_))
    }

    /// Messages that can be claimed.
    #[inline]
    pub fn ready(&self) -> u64 {
        match self {
            Ledger::Plain(entries) => entries.ready(),
            Ledger::Levels(levels) => levels.ready,
        }
    }

    /// Messages that are claimed and not settled.
    pub fn unacked(&self) -> u64 {
        match self {
            Ledger::Plain(entries) => entries.unacked(),
            Ledger::Levels(levels) => levels.unacked,
        }
    }

    /// What a claim must name.
    #[inline]
    pub fn cursor(&self) -> Cursor {
        match self {
            Ledger::Plain(entries) => entries.cursor(),
            Ledger::Levels(levels) => levels.cursor(),
        }
    }

    /// Enters a message that a former owner had; see [`Entries::restore`].
    pub fn restore(&mut self, message: u32, priority: u8, returns: Returns) -> Position {
        match self {
            Ledger::Plain(entries) => entries.restore(message, returns),
            Ledger::Levels(levels) => levels.push(message, priority, returns),
        }
    }

    /// See [`Entries::restore_paged_out`].
    ///
    /// # Panics
    /// With priorities: they are in the messages.
    pub fn restore_paged_out(&mut self, message: LogSequence, returns: Returns) -> Position {
        match self {
            Ledger::Plain(entries) => entries.restore_paged_out(message, returns),
            Ledger::Levels(_) => unreachable!("a queue with priorities is restored with its messages"),
        }
    }

    /// See [`Entries::page_in`].
    pub fn page_in(&mut self, position: Position, message: u32) {
        match self {
            Ledger::Plain(entries) => entries.page_in(position, message),
            Ledger::Levels(_) => unreachable!("messages with priorities are not paged out"),
        }
    }

    /// See [`Entries::paged_out`].
    pub fn paged_out(&self) -> u64 {
        match self {
            Ledger::Plain(entries) => entries.paged_out(),
            Ledger::Levels(_) => 0,
        }
    }

    /// See [`Entries::pass_through`].
    #[inline]
    pub fn pass_through(&mut self) {
        match self {
            Ledger::Plain(entries) => entries.pass_through(),
            Ledger::Levels(levels) => {
                assert_eq!(levels.ready, 0, "a message must not overtake ready ones");
                levels.version += 1;
                levels.levels[0].pass_through();
            }
        }
    }

    /// See [`Entries::claim`].
    ///
    /// # Errors
    /// [`StaleClaim`] when the queue has moved.
    #[inline]
    pub fn claim(&mut self, expected: Cursor, holder: Holder) -> Result<Option<Claim>, StaleClaim> {
        match self {
            Ledger::Plain(entries) => entries.claim(expected, holder),
            Ledger::Levels(levels) => levels.claim(expected, holder),
        }
    }

    /// See [`Entries::settle`].
    #[inline]
    pub fn settle(&mut self, position: Position, verdict: Verdict) -> Option<Settled> {
        match self {
            Ledger::Plain(entries) => entries.settle(position, verdict),
            Ledger::Levels(levels) => levels.settle(position, verdict),
        }
    }

    /// See [`Entries::returns`].
    pub fn returns(&self, position: Position) -> Returns {
        self.entries_of(position).map_or(Returns::default(), |entries| entries.returns(within(position)))
    }

    /// See [`Entries::kept_at`].
    pub fn kept_at(&self, position: Position) -> Option<Kept> {
        self.entries_of(position).and_then(|entries| entries.kept_at(within(position)))
    }

    /// See [`Entries::is_live`].
    pub fn is_live(&self, position: Position) -> bool {
        self.entries_of(position).is_some_and(|entries| entries.is_live(within(position)))
    }

    /// See [`Entries::expire`].
    pub fn expire(&mut self, position: Position) -> Option<Kept> {
        match self {
            Ledger::Plain(entries) => entries.expire(position),
            Ledger::Levels(levels) => levels.expire(position),
        }
    }

    /// See [`Entries::drop_ready`]; with priorities, the highest go first, as in RabbitMQ.
    pub fn drop_ready(&mut self, most: u64, released: impl FnMut(Kept)) -> u64 {
        match self {
            Ledger::Plain(entries) => entries.drop_ready(most, released),
            Ledger::Levels(levels) => levels.drop_ready(most, released),
        }
    }

    /// See [`Entries::demolish`].
    pub fn demolish(&mut self, most: usize, mut released: impl FnMut(Kept)) -> bool {
        match self {
            Ledger::Plain(entries) => entries.demolish(most, released),
            Ledger::Levels(levels) => {
                while let Some(last) = levels.levels.last_mut() {
                    if !last.demolish(most, &mut released) {
                        return false;
                    }
                    levels.levels.pop();
                }
                true
            }
        }
    }

    /// See [`Entries::split_ready`].
    pub fn split_ready(&mut self, mut released: impl FnMut(Kept)) -> (Ledger, u64) {
        match self {
            Ledger::Plain(entries) => {
                let (rest, count) = entries.split_ready(released);
                (Ledger::Plain(rest), count)
            }
            Ledger::Levels(levels) => {
                let rest = levels.levels.iter_mut().map(|level| level.split_ready(&mut released).0).collect();
                let rest = Levels {
                    levels: rest,
                    epoch: levels.epoch,
                    version: 0,
                    ready_levels: [0; 4],
                    ready: 0,
                    unacked: 0,
                };
                levels.version += 1;
                (Ledger::Levels(Box::new(rest)), std::mem::take(&mut levels.ready))
            }
        }
    }

    /// Every ready message, by a full count; in no particular order.
    pub fn ready_messages(&self) -> impl Iterator<Item = u32> {
        self.all().iter().flat_map(Entries::ready_messages)
    }

    /// See [`Entries::assert_consistent`].
    ///
    /// # Panics
    /// When a counter disagrees with the states.
    pub fn assert_consistent(&self) {
        self.all().iter().for_each(Entries::assert_consistent);
        if let Ledger::Levels(levels) = self {
            let sum = |count: fn(&Entries) -> u64| levels.levels.iter().map(count).sum::<u64>();
            let counted = (sum(Entries::ready), sum(Entries::unacked));
            assert_eq!(counted, (levels.ready, levels.unacked), "the levels' counters and their sums");
        }
    }

    fn all(&self) -> &[Entries] {
        match self {
            Ledger::Plain(entries) => std::slice::from_ref(entries),
            Ledger::Levels(levels) => &levels.levels,
        }
    }

    fn entries_of(&self, position: Position) -> Option<&Entries> {
        match self {
            Ledger::Plain(entries) => Some(entries),
            Ledger::Levels(levels) => levels.levels.get(level_of(position)),
        }
    }
}

#[cfg(test)]
#[path = "levels_tests.rs"]
mod tests;
